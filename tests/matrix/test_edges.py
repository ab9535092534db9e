"""`python -m matrix edges`: which cells are run, and how they are compared with the record."""

import subprocess
from types import SimpleNamespace

import pytest

from dsfix.patch import Patch, Provide, Severity
from matrix import edges
from matrix.table import Environment

HERE = Environment("here", "3.11", {"torch": "2.13.0"})
RELEASES = ("0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0", "0.15.0", "0.16.0")


def claiming(affects):
    return Patch("x", Severity.CRASH, affects, (Provide("a", "b", str),), "x", (), None)


@pytest.mark.parametrize(
    ("which", "affects", "expected"),
    [
        (edges.edges, {"deepspeed": ">=0.11,<0.14"}, ["0.10.0", "0.11.0", "0.13.0", "0.14.0", "0.16.0"]),
        (edges.edges, {"deepspeed": "==0.11.0"}, ["0.10.0", "0.11.0", "0.12.0", "0.16.0"]),
        (edges.edges, {"deepspeed": ">=0.14"}, ["0.13.0", "0.14.0", "0.16.0"]),
        (
            edges.edges,
            {"deepspeed": ">=0.10,<0.16,!=0.12.0"},
            ["0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.15.0", "0.16.0"],
        ),
        (edges.edges, {"deepspeed": ">=0.20"}, ["0.16.0"]),
        (edges.edges, {"deepspeed": ">=0.11,<0.14", "torch": "<2"}, ["0.16.0"]),
        (edges.edges, {"deepspeed": "<0.10", "torch": ">=2.13", "python": ">=3.11"}, ["0.9.0", "0.10.0", "0.16.0"]),
        (edges.edges, {"deepspeed": "<0.10", "transformers": ">=4"}, ["0.16.0"]),
        (edges.range_ends, {"deepspeed": ">=0.10,<0.13"}, ["0.10.0", "0.12.0", "0.13.0"]),
        (edges.range_ends, {"deepspeed": ">=0.12"}, ["0.11.0", "0.12.0", "0.16.0"]),
        (edges.range_ends, {"deepspeed": ">=0.1"}, ["0.9.0", "0.16.0"]),
        (edges.range_ends, {"deepspeed": "<0.12", "torch": "<2"}, []),
        (
            edges.claimed_and_neighbours,
            {"deepspeed": "==0.11.0"},
            ["0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.16.0"],
        ),
        (edges.claimed_and_neighbours, {"deepspeed": "<0.10"}, ["0.9.0", "0.10.0", "0.11.0", "0.16.0"]),
        (edges.claimed_and_neighbours, {"deepspeed": ">=0.15"}, ["0.13.0", "0.14.0", "0.15.0", "0.16.0"]),
    ],
)
def test_releases_around_a_claim(which, affects, expected):
    assert which(claiming(affects), HERE, RELEASES) == expected


def test_the_latest_patches_are_those_of_the_newest_commits(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments], check=True)

    git("init", "--quiet")
    (tmp_path / "patches").mkdir()
    for names in (("first", "second"), ("_template",), ("first",), ("removed",)):
        for name in names:
            path = tmp_path / "patches" / f"{name}.py"
            path.write_text(path.read_text() + "#" if path.exists() else "", encoding="utf-8")
        git("add", ".")
        git("commit", "--quiet", "--message", "m")
    known = ("first", "second", "third")
    assert edges.latest(5, known, tmp_path) == ["first", "second"]
    assert edges.latest(1, known, tmp_path) == ["first"]


def test_the_sample_has_every_nth_patch_and_the_named_ones():
    entries = [SimpleNamespace(id=each) for each in "abcdef"]
    assert [each.id for each in edges.sample(entries, 4, ["c", "gone"])] == ["a", "c", "e"]


@pytest.mark.parametrize(
    ("affects", "expected"),
    [
        ({"deepspeed": ">=0.1.1,<0.3.1"}, ["0.1.0", "0.1.1", "0.1.2", "0.2.1", "0.3.0", "0.3.1", "0.4.0"]),
        ({"deepspeed": "==0.2.0"}, ["0.1.2", "0.2.0", "0.2.1", "0.4.0"]),
    ],
)
def test_what_is_run_again_after_a_patch_has_changed(affects, expected):
    releases = ("0.0.0", "0.1.0", "0.1.1", "0.1.2", "0.2.0", "0.2.1", "0.3.0", "0.3.1", "0.4.0")
    assert edges.required(claiming(affects), HERE, releases) == expected


def test_a_contradiction_and_a_broken_environment_fail(stand_in):
    stand_in.patch("name_a", bug=">=0.1,<0.4")
    stand_in.table("9.9.9", (*stand_in.releases, "0.5.0"))
    done = stand_in.matrix("edges", "--whole")
    assert done.returncode == 1
    assert "name_a on deepspeed 0.1.0: wrong: " in done.stdout
    assert "name_a on deepspeed 0.5.0: deepspeed 0.5.0 cannot be installed: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("5 cells at the edges, 2 of them")
    assert not (stand_in.root / "matrix" / "proofs").exists(), "nothing is recorded"


def test_cannot_tell_fails_only_if_the_record_has_an_answer(stand_in):
    hidden = stand_in.root / "hidden"
    stand_in.patch("name_a", body=f"if os.path.exists({str(hidden)!r}): raise CannotTell('needs two GPUs')")
    hidden.touch()
    done = stand_in.matrix("edges")
    assert done.returncode == 0
    assert "name_a on deepspeed 0.3.0: cannot tell: needs two GPUs" in done.stdout
    hidden.unlink()
    assert stand_in.matrix("run_proof", "--release", "0.3.0").returncode == 0
    hidden.touch()
    done = stand_in.matrix("edges")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("1 cells at the edges, 1 of them")


def test_a_schedule_is_followed_with_the_patch_and_what_is_seen_without_it_is_known(stand_in):
    """name_a needs the schedule, name_b fails under it; name_c has no streams."""
    asked = "os.environ.get('DSFIX_LAB_SCHEDULE') == 'late'"
    stand_in.patch("name_a", device="cuda", body=f"if {asked}: raise RuntimeError('a race')")
    stand_in.patch("name_b", device="cuda")
    stand_in.patch("name_c", body="raise RuntimeError('run')")
    assert stand_in.matrix("run_proof", "--patch", "name_a", "name_b", "--release", "0.3.0").returncode == 0
    done = stand_in.matrix("edges", "--schedule", "late")
    assert done.returncode == 1
    *cells, last = sorted(done.stdout.splitlines(), reverse=True)
    assert cells[0].startswith("name_b on deepspeed 0.3.0: fixed: ")
    assert cells[1].startswith("name_a on deepspeed 0.3.0: wrong: ")
    assert "a race" in cells[1]
    assert last.startswith("2 cells at the edges, 1 of them")
