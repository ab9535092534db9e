"""The record of the run proof, proofs/<area>.txt: the reproduction of each bug on each release.

A cell is one patch on one release in one column: an environment of the table, or that environment and a GPU.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import CommandError
from dsfix.lab.reproduction import in_force
from dsfix.outcome import BUG_ABSENT, Outcome
from dsfix.patch import Patch
from dsfix.rules import all_in_range
from dsfix.settings import write_atomically
from matrix import fingerprints
from matrix.fingerprints import Fingerprint

DIRECTORY = Path(__file__).with_name("proofs")
_STAYS_OUT = [each.value for each in BUG_ABSENT]
_PATCH, _SEEN = "patch", "seen"  # the tables at the end of a record
_NO_DEVICE, _PRELOADED, _FRESH = "no device", "preloaded", "fresh"
_HEADING = re.compile(r"^\[(.+)\]\n", re.MULTILINE)  # of the cells of a patch
_LOST = Fingerprint("", "")  # fingerprint of a cell whose key was lost in a merge
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
    """One reproduction: its outcome and detail, and the patch's outcome in it, or what an applied one reported."""

    outcome: str
    patch: str
    detail: str


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

    fingerprint: Fingerprint
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)

    def cell(self, column: str, release: str) -> Cell | None:
        return self.cells.get(column, {}).get(release)


def load(entry: Entry, directory: Path = DIRECTORY) -> Record:
    """The patch's record, empty if no cell was run. Cells of an earlier version of the patch are marked `earlier`.

    Raises CommandError if the file is damaged.
    """
    path = _path(entry, directory)
    current = fingerprints.of(entry)
    try:
        text = sections(path).get(entry.id)
        cells = read(text) if text is not None else {}
    except (OSError, ValueError, KeyError, TypeError):
        raise CommandError(f"{path} is damaged at {entry.id}: repair the section, or delete it and run again") from None
    for releases in cells.values():
        for release, cell in releases.items():
            releases[release] = replace(cell, earlier=None) if cell.earlier == current else cell
    return Record(current, cells)


def sections(path: Path) -> dict[str, str]:
    """Patch id -> its section of an area's file, for `read`; empty without a file. Raises CommandError if damaged."""
    if not path.exists():
        return {}
    before, *parts = _HEADING.split(path.read_text(encoding="utf-8"))
    if before or len({*parts[::2]}) * 2 != len(parts):
        raise CommandError(f"{path} is damaged: it must have one section per patch")
    return dict(zip(parts[::2], parts[1::2]))


def _path(entry: Entry, directory: Path) -> Path:
    return directory / f"{entry.area}.txt"


def read(text: str) -> dict[str, dict[str, Cell]]:
    """Column -> release -> cell, in the format of proofs/README.md; `earlier`: the version that each was run with.

    A cell with a key that is not in the text belongs to an unknown, earlier version. Raises ValueError, KeyError or
    TypeError if the text is damaged.
    """
    blocks = [block.split("\n") for block in text.rstrip("\n").split("\n\n")]
    named = {head: dict(line.split(" ", 1) for line in lines) for head, *lines in blocks if head in (_PATCH, _SEEN)}
    versions = {key: Fingerprint(*value.split(" ")) for key, value in named[_PATCH].items()}
    texts = {key: json.loads(value) for key, value in named[_SEEN].items()}
    cells: dict[str, dict[str, Cell]] = {}
    for head, *lines in blocks:
        if head in named:
            continue
        column, device, preloaded, installed = head.split("; ")
        others = dict(word.split(" ") for word in installed.split(", ") if word)
        for line in lines:
            release, date, without, details, patched, details_patched, version = line.split(" ")
            if release in cells.setdefault(column, {}):
                raise ValueError(f"{column} has {release} twice")
            usual = "applied" if without.startswith("bug") else "not-affected"
            cells[column][release] = Cell(
                without=_run(without, "disabled", texts.get(details, "")),
                patched=_run(patched, usual, texts.get(details_patched, "")),
                versions={"deepspeed": release, **others},
                device="" if device == _NO_DEVICE else device,
                preloaded=preloaded == _PRELOADED,
                date=date,
                earlier=versions.get(version, _LOST) if {details, details_patched} <= texts.keys() else _LOST,
            )
    return {column: dict(sorted(cells[column].items(), key=_by_release)) for column in cells}


def _run(text: str, usual: str, detail: str) -> Run:
    outcome, differs, patch = text.partition(":")
    return Run(outcome, patch.replace("+", ", ") if differs else usual, detail)


def save(entry: Entry, record: Record, directory: Path = DIRECTORY) -> None:
    """Write the patch's record into its area's file, atomically, one cell per line."""
    versions: dict[str, str] = {}
    seen: dict[str, str] = {}
    blocks: dict[tuple[str, str], list[str]] = {}
    for column in sorted(record.cells, reverse=True):
        for release, cell in sorted(record.cells[column].items(), key=_by_release):
            without, patched = cell.without, cell.patched
            line = (
                *(
                    release,
                    cell.date,
                    _written(without, "disabled"),
                    _keyed(json.dumps(without.detail, ensure_ascii=False), seen),
                ),
                _written(patched, "applied" if without.outcome == "bug" else "not-affected"),
                _keyed(json.dumps(patched.detail, ensure_ascii=False), seen),
                _keyed(" ".join(cell.earlier or record.fingerprint), versions),
            )
            blocks.setdefault((column, _circumstances(cell)), []).append(" ".join(line))
    parts = [("; ".join(head), *lines) for head, lines in blocks.items()]
    for head, named in ((_PATCH, versions), (_SEEN, seen)):
        parts.append((head, *sorted(f"{key} {text}" for key, text in named.items())))
    path = _path(entry, directory)
    written = {**sections(path), entry.id: "\n\n".join(map("\n".join, parts))}
    text = "\n\n".join(f"[{patch_id}]\n{section.strip()}" for patch_id, section in sorted(written.items()))
    write_atomically(path, f"{text}\n".encode())


def column(environment: str, gpu: str, entry: Entry) -> str:
    """The column of the patch's cells: the environment, and the GPU if the reproduction uses one."""
    return f"{environment} on {gpu}" if gpu and entry.patch.device == "cuda" else environment


def store(entry: Entry, column: str, release: str, cell: Cell, directory: Path = DIRECTORY) -> None:
    """Add one cell to the patch's record, under a lock. Cells of an earlier version are kept and marked."""
    directory.mkdir(exist_ok=True)
    with _locked(directory):
        record = load(entry, directory)
        record.cells.setdefault(column, {})[release] = cell
        save(entry, record, directory)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _circumstances(cell: Cell) -> str:
    others = ", ".join(f"{name} {version}" for name, version in cell.versions.items() if name != "deepspeed")
    return "; ".join((cell.device or _NO_DEVICE, _PRELOADED if cell.preloaded else _FRESH, others))


def _written(run: Run, usual: str) -> str:
    return run.outcome if run.patch == usual else f"{run.outcome}:{run.patch.replace(', ', '+')}"


def _keyed(text: str, named: dict[str, str]) -> str:
    """A key that depends on the text alone, so that other lines do not change."""
    key = hashlib.sha256(text.encode()).hexdigest()[:6]
    named[key] = text
    return key


def _by_release(item: tuple[str, Cell]) -> Version:
    return Version(item[0])


def without_paths(detail: str) -> str:
    """The detail with paths reduced to file names."""
    return _PATH.sub("", detail)


def inside(patch: Patch, versions: Mapping[str, str]) -> bool:
    """Whether the patch claims these versions; an absent distribution is outside."""
    return all_in_range(patch.affects, versions)


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
    if not claimed and any(word not in _STAYS_OUT for word in patched.patch.split(", ")):
        return State.WRONG, f"outside the claimed range the patch is {patched.patch}"
    if "cannot-tell" in (without.outcome, patched.outcome):
        return State.CANNOT_TELL, without.detail if without.outcome == "cannot-tell" else patched.detail
    if not claimed:
        return State.NOT_AFFECTED, "no bug, and the patch is not applied"
    if without.outcome == "no-bug":
        return State.WRONG, "the bug does not occur inside the claimed range"
    if not in_force(patched.patch):
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
