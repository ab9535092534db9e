"""The commits of a clone that look like fixes, as rows to judge."""

import argparse
import subprocess

import pytest

from dsfix.cli.exits import Complaint
from dsfix.upstream import table
from matrix import upstream_rows

HEAD = "# judged: {}\n# releases: 0.12.0 0.12.1 0.13.0\n" + "\t".join(table.COLUMNS) + "\n"
ROW = "pull/7\t0.12.0\t0.12.0\tcrash\t3\tengine\tIt fails\t\t\n"


@pytest.fixture
def clone(tmp_path):
    """A clone with a judged commit, and these after it: a feature, fixes before and after 0.12.1, one in the tests."""
    directory = tmp_path / "DeepSpeed"

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(("git", *identity, *arguments), cwd=directory, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(path, *message):
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(message))
        git("add", "-A")
        git("commit", "-q", *(part for each in message for part in ("-m", each)))

    directory.mkdir()
    git("init", "-q")
    commit("deepspeed/old.py", "Fix what was judged (#1)")
    judged = git("rev-parse", "--short=9", "HEAD")
    commit("deepspeed/runtime/zero/stage3.py", "Fix a crash (#2)")
    commit("deepspeed/runtime/pipe/engine.py", "Use another buffer (#3)", "The old one was wrong.")
    commit("deepspeed/new.py", "A new optimizer (#4)")
    git("tag", "v0.12.1")
    commit("tests/unit/test_it.py", "Fix a test (#5)")
    commit("bin/deepspeed", "Fix the launcher\ttwice")
    commit("deepspeed/known.py", "Fix what is a row (#7)")
    return directory, judged


@pytest.fixture
def listed(clone, tmp_path, monkeypatch, capsys):
    directory, judged = clone
    path = tmp_path / "table.tsv"
    path.write_text(HEAD.format(judged) + ROW)
    monkeypatch.setattr(upstream_rows, "PATH", path)

    def run(*options, clone=directory):
        parser = argparse.ArgumentParser()
        upstream_rows.add_arguments(parser)
        assert upstream_rows.run(parser.parse_args(["--clone", str(clone), *options])) == 0
        return capsys.readouterr()

    return run, path


def rows(output):
    return [line.split("\t") for line in output.out.splitlines()[1:]]


def test_only_fixes_of_code_that_users_run_and_without_a_row(listed):
    run, _ = listed
    output = run()
    found = {cells[0]: cells for cells in rows(output)}
    assert list(found)[:2] == ["pull/2", "pull/3"]
    assert list(found)[2].startswith("commit/")
    assert len(found) == 3
    assert [cells[5] for cells in found.values()] == ["zero-3", "pipeline", "launcher"]
    assert "4 touch Python code and are no rows, 3 are listed; --all" in output.err
    assert all(len(cells) == len(table.COLUMNS) for cells in found.values())


def test_the_last_release_without_the_fix_is_taken_from_the_tags(listed):
    found = {cells[0]: cells[2] for cells in rows(listed[0]())}
    assert found["pull/2"] == "~0.12.0"
    assert [last for key, last in found.items() if key.startswith("commit/")] == ["~0.13.0"]


def test_all_lists_the_others(listed):
    assert "pull/4" in {cells[0] for cells in rows(listed[0]("--all"))}


def test_an_unjudged_row_is_not_accepted_by_the_table(listed):
    run, path = listed
    unjudged = run().out.splitlines()[1]
    with pytest.raises(table.Damaged):
        table.parse(path.read_text() + unjudged + "\n")


def test_judged_moves_the_head_and_nothing_is_left_to_judge(listed):
    run, path = listed
    assert "has judged all commits up to" in run("--judged").out
    assert rows(run()) == []
    assert path.read_text().endswith(ROW)


def test_a_directory_that_is_not_a_clone_is_reported(listed, tmp_path):
    with pytest.raises(Complaint, match="is no clone of DeepSpeed"):
        listed[0](clone=tmp_path / "nothing")
