"""Every branch of `proofs.judge`, and the record's file."""

import dataclasses
import sys

import pytest

from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import CommandError
from dsfix.patch import Patch, Provide, Severity
from matrix import fingerprints, proofs
from matrix.proofs import Cell, Run, State

PATCH = Patch("x", Severity.CRASH, {"deepspeed": "<2"}, (Provide("a", "b", str),), "x", (), None)
ENTRY = Entry("a_patch", PATCH, sys.modules[__name__])
FILE = f"{ENTRY.area}.txt"
INSIDE, OUTSIDE = "1.0", "2.0"
OLD = fingerprints.Fingerprint("previous", "previous")


def cell(release, without, patched, state="", without_state="disabled"):
    state = state or ("applied" if release == INSIDE else "not-affected")
    versions = {"deepspeed": release}
    return Cell(Run(without, without_state, ""), Run(patched, state, ""), versions, "CPU", False, "2026-01-01")


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (cell(INSIDE, "bug", "no-bug"), State.FIXED),
        (cell(OUTSIDE, "no-bug", "no-bug"), State.NOT_AFFECTED),
        (cell(OUTSIDE, "no-bug", "no-bug", "already-fixed"), State.NOT_AFFECTED),
        (cell(INSIDE, "cannot-tell", "cannot-tell", "pending"), State.CANNOT_TELL),
        (cell(INSIDE, "bug", "cannot-tell"), State.CANNOT_TELL),
        (cell(OUTSIDE, "cannot-tell", "no-bug"), State.CANNOT_TELL),
        (cell(INSIDE, "bug", "bug"), State.WRONG),
        (cell(INSIDE, "no-bug", "no-bug"), State.WRONG),
        (cell(INSIDE, "bug", "no-bug", "not-affected"), State.WRONG),
        (cell(INSIDE, "bug", "no-bug", "applied, drifted"), State.WRONG),
        (cell(INSIDE, "bug", "no-bug", without_state="conflict"), State.WRONG),
        (cell(INSIDE, "cannot-tell", "cannot-tell", "drifted"), State.WRONG),
        (cell(INSIDE, "error", "no-bug"), State.WRONG),
        (cell(INSIDE, "bug", "timeout"), State.WRONG),
        (cell(OUTSIDE, "bug", "no-bug"), State.WRONG),
        (cell(OUTSIDE, "no-bug", "bug"), State.WRONG),
        (cell(OUTSIDE, "no-bug", "no-bug", "applied"), State.WRONG),
        (cell(OUTSIDE, "no-bug", "no-bug", "disabled"), State.WRONG),
        (None, State.NOT_RUN),
    ],
)
def test_what_a_cell_shows_about_the_claim(seen, state):
    results, why = proofs.judge(PATCH, seen)
    assert results is state, why


def test_an_absent_distribution_is_outside():
    patch = Patch("x", Severity.CRASH, {"deepspeed": "<2", "transformers": ">=4"}, PATCH.changes, "x", (), None)
    assert not proofs.inside(patch, {"deepspeed": "1.0"})
    assert proofs.inside(patch, {"deepspeed": "1.0", "transformers": "4.1"})


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = proofs.Record(fingerprints.of(ENTRY))
    record.cells["here"] = {"1.10.0": cell("1.10.0", "bug", "no-bug"), "1.9.0": cell("1.9.0", "bug", "no-bug")}
    proofs.save(ENTRY, record, tmp_path)
    assert proofs.load(ENTRY, tmp_path) == record
    assert list(proofs.load(ENTRY, tmp_path).cells["here"]) == ["1.9.0", "1.10.0"]


def test_cells_of_an_earlier_version_are_kept_and_marked(tmp_path, monkeypatch):
    old = proofs.Record(OLD, {"here": {"1.8.0": cell("1.8.0", "bug", "no-bug")}})
    proofs.save(ENTRY, old, tmp_path)
    [seen] = proofs.load(ENTRY, tmp_path).cells["here"].values()
    assert seen.earlier == OLD
    proofs.store(ENTRY, "here", "1.9.0", cell("1.9.0", "bug", "no-bug"), tmp_path)
    results = proofs.load(ENTRY, tmp_path).cells["here"]
    assert {release: each.earlier for release, each in results.items()} == {"1.8.0": OLD, "1.9.0": None}
    monkeypatch.setattr(fingerprints, "of", lambda entry: OLD)
    assert [each.earlier is None for each in proofs.load(ENTRY, tmp_path).cells["here"].values()] == [True, False]


def test_cells_are_read_as_they_were_run(tmp_path):
    """For any outcome of the patch, device, installed versions and text."""
    text = 'a | "quoted" \\ and\n\ntwo lines\u2028…\r'
    odd = Cell(
        Run("error", "", text), Run("bug", "applied, drifted", text), {"deepspeed": "2.0"}, "", True, "2026-01-02"
    )
    usual = cell("1.9.0", "bug", "no-bug")
    other = dataclasses.replace(usual, versions={"deepspeed": "2.1", "torch": "2.3.1+cpu", "python": "3.11.7"})
    record = proofs.Record(fingerprints.of(ENTRY), {"here": {"1.9.0": usual, "2.0": odd, "2.1": other}})
    proofs.save(ENTRY, record, tmp_path)
    assert proofs.load(ENTRY, tmp_path) == record


RECORD = """here; CPU; fresh; torch 2.3.1
1.9.0 2026-01-01 bug 12ae32 no-bug 12ae32 d96e1b

patch
d96e1b previous previous

seen
12ae32 "as it is"
"""


def test_the_example_is_a_record():
    [(release, results)] = proofs.read(RECORD)["here"].items()
    assert (release, results.patched, results.earlier) == ("1.9.0", Run("no-bug", "applied", "as it is"), OLD)


@pytest.mark.parametrize("key", ['12ae32 "', "d96e1b previous"])
def test_a_cell_whose_key_was_lost_in_a_merge_is_of_an_earlier_version(tmp_path, monkeypatch, key):
    monkeypatch.setattr(fingerprints, "of", lambda entry: OLD)
    dropped, other = RECORD.replace(key, key.replace(key[0], "e", 1)), 'f00000 "seen elsewhere"\n'
    two = dropped.replace("\n\npatch", "\n1.8.0 2026-01-01 bug f00000 no-bug f00000 abcdef\n\npatch")
    two = two.replace("patch\n", "patch\nabcdef previous previous\n")
    (tmp_path / FILE).write_text(f"[a_patch]\n{two}{other}")
    results = proofs.load(ENTRY, tmp_path).cells["here"]
    assert {release: each.earlier is None for release, each in results.items()} == {"1.8.0": True, "1.9.0": False}


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        (RECORD, ""),
        ("here;", "<<<<<<< ours\nhere;"),
        ("previous previous", "previous"),
        ("1.9.0 2026", "1.9.0 2026-01-01 bug 12ae32 no-bug 12ae32 d96e1b\n1.9.0 2026"),
        (" d96e1b\n\n", "\n\n"),
        ("seen", "saw"),
        ("[a_patch]", "[a_patch]\n\n[a_patch]"),
        ("[a_patch]\n", ""),
    ],
)
def test_a_damaged_record_is_named(tmp_path, part, damage):
    (tmp_path / FILE).write_text(f"[a_patch]\n{RECORD}".replace(part, damage, 1))
    with pytest.raises(CommandError, match=f"{FILE} is damaged"):
        proofs.load(ENTRY, tmp_path)


def test_no_path_of_a_machine_is_recorded():
    detail = "cannot import name 'x' from 'y' (/home/me/venv/lib/python3.11/site-packages/y/__init__.py)"
    assert proofs.without_paths(detail) == "cannot import name 'x' from 'y' (__init__.py)"
    assert proofs.without_paths("a ratio of 1/3, see a/b") == "a ratio of 1/3, see a/b"
