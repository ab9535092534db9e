"""``python -m matrix migrate DIR``: take the cells of records in JSON into the record."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.catalogue import registry
from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import OK, TROUBLE, Complaint
from matrix import fingerprints, proofs
from matrix.fingerprints import Fingerprint
from matrix.proofs import Cell, Run, State

NAME = "migrate"
HELP = "take the cells of records in JSON into the record, and show that no verdict is lost"
Place = tuple[str, str, str]  # patch, column, release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="with one file ID.json for each patch")


def run(options: argparse.Namespace) -> int:
    """0 if every cell is in the record and shows what it showed before. Raises Complaint."""
    entries = registry.catalogue()
    files = sorted(options.directory.glob("*.json"))
    unknown = [each.stem for each in files if each.stem not in entries]
    if not files or unknown:
        raise Complaint(f"{options.directory} has no records of patches: {', '.join(unknown) or 'no *.json'}")
    before = {place: cell for path in files for place, cell in _old(path, entries[path.stem])}
    present = {place: cell for entry in entries.values() for place, cell in _recorded(entry)}
    taken = {place: cell for place, cell in before.items() if place not in present or _newer(cell, present[place])}
    for patch_id in sorted({place[0] for place in taken}):
        record = proofs.load(entries[patch_id])
        for (of, column, release), cell in taken.items():
            if of == patch_id:
                record.cells.setdefault(column, {})[release] = cell
        proofs.save(record)
    wanted = {**present, **taken}
    after = {place: cell for entry in entries.values() for place, cell in _recorded(entry)}
    lost = [place for place in wanted if place not in after]
    differ = [place for place, cell in after.items() if wanted.get(place) != cell]
    print(f"{len(before)} cells in {options.directory}: {len(taken)} taken, {len(before) - len(taken)} known already")
    print(f"in {options.directory}: {_counted(before, entries)}")
    print(f"the same cells in the record: {_counted({each: after[each] for each in before if each in after}, entries)}")
    print(f"all of the record: {_counted(after, entries)}")
    other = [
        each for each in before if each in after and _judged(before, each, entries) != _judged(after, each, entries)
    ]
    print(f"lost: {len(lost)}; not as written: {len(differ)}; with another verdict than in JSON: {len(other)}")
    for patch_id, column, release in other:
        print(f"{patch_id} on {release}, {column}: another verdict: the record has a newer run")
    return TROUBLE if lost or differ else OK


def _old(path: Path, entry: Entry) -> Iterator[tuple[Place, Cell]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        current = fingerprints.of(entry)
        for column, releases in data["cells"].items():
            for release, cell in releases.items():
                name = str(Version(release))
                yield (
                    (entry.id, column, name),
                    _cell(cell, Fingerprint(*cell.get("earlier", data["fingerprint"])), current),
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Complaint(f"{path} is no record") from None


def _cell(data: dict[str, Any], of: Fingerprint, current: Fingerprint) -> Cell:
    runs = ({name: each for name, each in data[run].items() if name != "seconds"} for run in ("without", "patched"))
    without, patched = (Run(**each) for each in runs)
    facts = {name: data[name] for name in ("versions", "device", "preloaded", "date")}
    return Cell(without, patched, **facts, earlier=None if of == current else of)


def _recorded(entry: Entry) -> Iterator[tuple[Place, Cell]]:
    for column, releases in proofs.load(entry).cells.items():
        for release, cell in releases.items():
            yield (entry.id, column, release), cell


def _newer(cell: Cell, known: Cell) -> bool:
    """Whether the cell replaces a recorded one: it was run with the patch as it is, or later."""
    return cell != known and (cell.earlier is None, cell.date) >= (known.earlier is None, known.date)


def _judged(cells: dict[Place, Cell], place: Place, entries: dict[str, Entry]) -> tuple[State, str, bool]:
    cell = cells[place]
    return (*proofs.judge(entries[place[0]].patch, cell), cell.earlier is None)


def _counted(cells: dict[Place, Cell], entries: dict[str, Entry]) -> str:
    counts = Counter(_judged(cells, place, entries)[::2] for place in cells)
    return ", ".join(
        f"{number} {state.value}{'' if current else ' with an earlier version of the patch'}"
        for (state, current), number in sorted(counts.items(), key=lambda each: (each[0][0].value, not each[0][1]))
    )
