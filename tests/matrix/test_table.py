"""The committed table is consistent, and is written as it is read; a new release is added with its facts, and every
patch's verdict there is reported; environments are found by their torch and Python.
"""

import argparse
import functools
import importlib.metadata
import platform
import re
import sys

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsfix.catalogue import registry
from dsfix.cli.exits import CommandError
from dsfix.engine.verdict import Verdict
from dsfix.known_bugs import table as known_bugs
from dsfix.lab.distributions import TorchBuild
from dsfix.outcome import Outcome
from matrix import add, environments, source_proof, table, toxini
from matrix.changed import command as changed

CURRENT = table.load()
RELEASES = CURRENT.releases
COMMAND = argparse.Namespace(jobs=2)


def test_every_release_appears_once_and_none_is_a_pre_release():
    versions = [each.version for each in RELEASES]
    assert len(set(versions)) == len(versions)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", each.deepspeed) for each in RELEASES)
    assert versions[0] == Version("0.12.0")
    assert RELEASES[-1].sampled


def test_environments_meet_the_requirements_of_their_releases():
    for environment in CURRENT.environments.values():
        for each in CURRENT.run_in(environment.name):
            for distribution, version in environment.distributions.items():
                assert SpecifierSet(each.requires[distribution]).contains(version), (each.deepspeed, environment.name)


def test_every_environment_is_used():
    assert [each.deepspeed for each in CURRENT.run_in("torch-2.4.1")][-1] == "0.16.4"
    assert all(CURRENT.run_in(name) for name in CURRENT.environments)


def test_what_is_written_is_what_is_read(tmp_path):
    copy = tmp_path / "releases.json"
    table.save(table.load(), copy)
    assert copy.read_bytes() == table.PATH.read_bytes()
    assert table.load(copy) == table.load()


@pytest.mark.parametrize(
    "text", ["", "<<<<<<< ours\n", "[]", '{"environments": {}, "releases": []}', '{"releases": [{}]}']
)
def test_an_invalid_table_is_named(tmp_path, text):
    (tmp_path / "releases.json").write_text(text)
    with pytest.raises(CommandError, match=r"releases\.json (is not a valid table|has no environment)"):
        table.load(tmp_path / "releases.json")


def following(how):
    """The next release of the newest's minor series, or the first of the next series."""
    major, minor, micro = RELEASES[-1].version.release
    return f"{major}.{minor}.{micro + 1}" if how == "same series" else f"{major}.{minor + 1}.0"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Copies of the table, tox.ini and the version gate, which the command changes, and an empty cache."""
    releases, environments = tmp_path / "releases.json", tmp_path / "tox.ini"
    releases.write_bytes(table.PATH.read_bytes())
    environments.write_bytes(toxini.PATH.read_bytes())
    monkeypatch.setattr(table, "load", functools.partial(table.load, releases))
    monkeypatch.setattr(table, "save", functools.partial(table.save, path=releases))
    monkeypatch.setattr(toxini, "PATH", environments)
    (tmp_path / "versions.py").write_bytes(add.GATE.read_bytes())
    monkeypatch.setattr(add, "GATE", tmp_path / "versions.py")
    (tmp_path / "table.tsv").write_bytes(add.KNOWN.read_bytes())
    monkeypatch.setattr(add, "KNOWN", tmp_path / "table.tsv")
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(changed, "report", lambda old, new, jobs: print(f"{old} to {new}, {jobs} jobs"))
    return tmp_path


def offer_table(index):
    for release in RELEASES:
        index.offer(release.deepspeed)


@pytest.mark.parametrize("how", ["same series", "next series"])
def test_a_new_release(checkout, package_index, capsys, how):
    offer_table(package_index)
    package_index.offer(following(how))
    add.run(COMMAND)
    out = capsys.readouterr().out
    extended = table.load()
    assert extended.releases[-1] == table.Release(
        deepspeed=following(how),
        released="2023-11-14",
        requires={"torch": ">=2.0.0", "numpy": "", "pydantic": ">=2.0.0"},
        pythons=("3.9", "3.10"),
        sampled=True,
    )
    # the last release of a minor series stays sampled; any other is sampled only while it is the newest
    assert extended.release(RELEASES[-1].deepspeed).sampled == (how == "next series")
    assert extended.releases[:-2] == RELEASES[:-1]
    assert f'\nNEWEST_PROVEN = Version("{following(how)}")\n' in (checkout / "versions.py").read_text(encoding="utf-8")
    known = known_bugs.parse((checkout / "table.tsv").read_text(encoding="utf-8"))
    assert [str(release) for release in known.releases] == [release.deepspeed for release in extended.releases]
    text = (checkout / "tox.ini").read_text(encoding="utf-8")
    assert toxini.updated(text, extended) == text
    assert f" ds-{following(how)}\n" in text
    for patch_id in registry.catalogue():
        assert out.count(f"  {patch_id}: ") == 1
    assert f"\n{RELEASES[-1].deepspeed} to {following(how)}, 2 jobs\nNext: " in out
    assert f"python -m tox run -e matrix -- --release {following(how)}\n" in out
    add.run(COMMAND)
    assert capsys.readouterr().out == f"No release is newer than {following(how)}.\n"


def test_an_index_that_fails_is_a_complaint_and_changes_nothing(checkout, package_index):
    package_index.offer("99.0.0", hashes={"sha256": "0" * 64})
    before = (checkout / "releases.json").read_bytes()
    with pytest.raises(CommandError) as complaint:
        add.run(COMMAND)
    assert complaint.value.status == 2
    assert (checkout / "releases.json").read_bytes() == before


@pytest.mark.parametrize(
    ("inside", "number", "hidden", "faults", "expected", "work"),
    [
        (True, "pending", "pending", (), "still affected", False),
        (True, "pending", "pending", ("no f",), "drifted, no f: adapt its changes", True),
        (True, "already-fixed", "already-fixed", (), "fixed, why: end its range before 9.9.9", True),
        (True, "drifted", "not-affected", (), "drifted, why: if the bug is gone, end its range before 9.9.9", True),
        (False, "not-affected", "not-affected", (), "not affected", False),
        (False, "not-affected", "already-fixed", (), "not affected, the fix is in the source", False),
        (False, "not-affected", "pending", (), "outside its range, but the bug is in the source", True),
    ],
)
def test_advice_on_a_patch(inside, number, hidden, faults, expected, work):
    verdicts = Verdict(Outcome(number), "why"), Verdict(Outcome(hidden), "why")
    cell = source_proof.SourceCell("some_patch", "9.9.9", inside, *verdicts, faults, "", 0.0)
    assert add.advice(cell).startswith(expected)
    assert bool(cell.mismatches()) == work


@pytest.mark.parametrize(("path", "updated"), [(add.GATE, add.proven), (toxini.PATH, toxini.updated)])
def test_what_the_command_writes_is_up_to_date(path, updated):
    text = path.read_text(encoding="utf-8")
    assert updated(text, CURRENT) == text


def test_a_missing_dependency_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "torch_build", lambda: TorchBuild("2.13.0+cpu", tmp_path, None))
    information = (
        tmp_path / f"releases/torch2.13.0+cpu-{sys.implementation.cache_tag}/deepspeed-1.2.0/deepspeed-1.2.0.dist-info"
    )
    information.mkdir(parents=True)
    requires = "Requires-Dist: pytest\nRequires-Dist: not-there>=1\nRequires-Dist: optional; extra == 'x'\n"
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: 1.2.0\n{requires}")
    with pytest.raises(environments.Unavailable, match=r"deepspeed 1\.2\.0 needs not-there, not installed"):
        environments.installed("1.2.0")


def test_environment_is_found_by_torch_and_python(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    python = ".".join(platform.python_version_tuple()[:2])
    known = [
        table.Environment(f"torch-{torch}-{minor}", minor, {"torch": torch})
        for torch in ("2.3.1", "2.13.0")
        for minor in ("3.99", python)
    ]
    releases = table.Table({each.name: each for each in known}, ())
    assert environments.current(releases) is known[-1]
    with pytest.raises(environments.Unavailable, match=r"not an environment of the table, which has Python 3\.99 with"):
        environments.current(table.Table({each.name: each for each in known[:-1]}, ()))
