"""The record of the run proof, proofs/<patch id>.json: the reproduction of each bug on each release.

A cell is one patch on one release in one column: an environment of the table, or that environment and a GPU.
"""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import Complaint
from dsfix.outcome import STAYS_OUT, Outcome
from dsfix.patch import Patch
from matrix import fingerprints
from matrix.fingerprints import Fingerprint

DIRECTORY = Path(__file__).with_name("proofs")
_STAYS_OUT = [each.value for each in STAYS_OUT]
_PATH = re.compile(r"(?<![\w.])/(?:[^\s/:'\",()]+/)+")


class State(enum.Enum):
    """What a cell shows about the claimed range."""

    FIXED = "fixed"  # inside: the bug without the patch, none with it
    NOT_AFFECTED = "not affected"  # outside: no bug, and the patch is not applied
    CANNOT_TELL = "cannot tell"
    WRONG = "wrong"  # it contradicts the claim
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Run:
    """One reproduction: its outcome and detail, the patch's outcome in it, wall-clock seconds."""

    outcome: str
    patch: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Cell:
    """The reproduction without the patch and with it.

    versions: of all relevant distributions. preloaded: whether the processes were forked from one that had imported
    torch. date: YYYY-MM-DD. earlier: the patch's fingerprint at that time, None if it is unchanged.
    """

    without: Run
    patched: Run
    versions: Mapping[str, str]
    device: str
    preloaded: bool
    date: str
    earlier: Fingerprint | None = None


@dataclass
class Record:
    """All cells of one patch: column -> DeepSpeed release -> cell."""

    patch_id: str
    fingerprint: Fingerprint
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)

    def cell(self, column: str, release: str) -> Cell | None:
        return self.cells.get(column, {}).get(release)


def load(entry: Entry, directory: Path = DIRECTORY) -> Record:
    """The patch's record, empty if there is no file. Cells of an earlier version of the patch are marked `earlier`.

    Raises Complaint if the file is damaged.
    """
    current = fingerprints.of(entry)
    path = directory / f"{entry.id}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cells = {
            column: {
                str(Version(release)): _cell(cell, data["fingerprint"], current) for release, cell in releases.items()
            }
            for column, releases in data["cells"].items()
        }
    except FileNotFoundError:
        return Record(entry.id, current)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Complaint(f"{path} is damaged: repair it, or delete it and run the patch's cells again") from None
    return Record(entry.id, current, cells)


def _cell(data: Mapping[str, Any], recorded: Sequence[str], current: Fingerprint) -> Cell:
    of = Fingerprint(*data.get("earlier", recorded))
    return Cell(
        without=Run(**data["without"]),
        patched=Run(**data["patched"]),
        versions=data["versions"],
        device=data["device"],
        preloaded=data["preloaded"],
        date=data["date"],
        earlier=None if of == current else of,
    )


def save(record: Record, directory: Path = DIRECTORY) -> None:
    """Write the record atomically, one cell per line."""
    columns = []
    for column in sorted(record.cells, reverse=True):
        by_release = sorted(record.cells[column].items(), key=lambda item: Version(item[0]))
        rows = [f"   {json.dumps(release)}: {json.dumps(_written(cell))}" for release, cell in by_release]
        columns.append(f"  {json.dumps(column)}: {{\n" + ",\n".join(rows) + "\n  }")
    head = f' "patch": {json.dumps(record.patch_id)},\n "fingerprint": {json.dumps(record.fingerprint)},\n'
    text = "{\n" + head + ' "cells": {\n' + ",\n".join(columns) + "\n }\n}\n"
    directory.mkdir(exist_ok=True)
    partial = directory / f".{record.patch_id}.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, directory / f"{record.patch_id}.json")


def _written(cell: Cell) -> dict[str, Any]:
    return {name: value for name, value in asdict(cell).items() if name != "earlier" or value}


def without_paths(detail: str) -> str:
    """The detail with paths reduced to file names."""
    return _PATH.sub("", detail)


def inside(patch: Patch, versions: Mapping[str, str]) -> bool:
    """Whether the patch claims these versions; an absent distribution is outside."""
    return all(
        name in versions and SpecifierSet(specifiers).contains(versions[name].partition("+")[0], prereleases=True)
        for name, specifiers in patch.affects.items()
    )


def judge(patch: Patch, cell: Cell | None) -> tuple[State, str]:
    """What the cell shows about the patch's claim, and why in one sentence."""
    if cell is None:
        return State.NOT_RUN, "not run with this version of the patch"
    claimed = inside(patch, cell.versions)
    without, patched = cell.without, cell.patched
    if {without.outcome, patched.outcome} & {"error", "timeout"}:
        which = "without" if without.outcome in ("error", "timeout") else "with"
        return State.WRONG, f"{which} the patch the reproduction gave no answer"
    if without.patch != "disabled":
        return State.WRONG, f"in the run without the patch it is {without.patch}, not disabled"
    trouble = [each.value for each in Outcome if each.trouble and each.value in patched.patch.split(", ")]
    if trouble:
        return State.WRONG, f"the patch is {' and '.join(trouble)}"
    if not claimed and "bug" in (without.outcome, patched.outcome):
        return State.WRONG, "the bug occurs outside the claimed range"
    if patched.outcome == "bug":
        return State.WRONG, "the bug occurs with the patch"
    if not claimed and any(each not in _STAYS_OUT for each in patched.patch.split(", ")):
        return State.WRONG, f"outside the claimed range the patch is {patched.patch}"
    if "cannot-tell" in (without.outcome, patched.outcome):
        return State.CANNOT_TELL, without.detail if without.outcome == "cannot-tell" else patched.detail
    if not claimed:
        return State.NOT_AFFECTED, "no bug, and the patch is not applied"
    if without.outcome == "no-bug":
        return State.WRONG, "the bug does not occur inside the claimed range"
    if patched.patch != "applied":
        return State.WRONG, f"inside the claimed range the patch is {patched.patch}"
    return State.FIXED, "the bug occurs without the patch and not with it"


def sentence(patch_id: str, release: str, patch: Patch, cell: Cell | None) -> str:
    """One line about a cell: its state and why; if it is wrong, with the first line of the error or bug."""
    state, why = judge(patch, cell)
    line = f"{patch_id} on deepspeed {release}: {state.value}: {why}"
    runs = (cell.patched, cell.without) if cell is not None and state is State.WRONG else ()
    for outcomes in (("error", "timeout"), ("bug",)):
        for run in runs:
            if run.outcome in outcomes:
                return f"{line}: {run.detail.partition(chr(10))[0]}"
    return line
