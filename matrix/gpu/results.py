"""What a run of the folder found, and the record's column of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import CommandError
from matrix import fingerprints, proofs
from matrix.fingerprints import Fingerprint
from matrix.proofs import Cell, Run


@dataclass(frozen=True)
class Results:
    """column: of the record, "" on the emulated device. cells: (patch, release, cell); lines: messages to print."""

    column: str
    cells: tuple[tuple[str, str, Cell], ...]
    lines: tuple[str, ...]


def load(path: Path) -> Results:
    """Raises CommandError if the file is not a result of the folder."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        machine, items = data["machine"], data["items"]
        cells = tuple((item["name"], item["release"], _cell(item["cell"])) for item in items if "cell" in item)
        torch = machine["versions"]["torch"].partition("+")[0]
        column = "" if machine["emulated"] else f"torch-{torch} on {machine['device']}"
        lines = tuple(_lines(machine, data["seconds"], items))
        earlier = {name: Fingerprint(*each) for name, each in data["fingerprints"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"{path} is not a result of the folder's run.py") from None
    return Results(column, tuple(_marked(cells, earlier)), lines)


def record(results: Results, directory: Path = proofs.DIRECTORY) -> int:
    """Add the cells to the record; returns how many. Nothing is recorded of the emulated device, nor where a
    reproduction gave no answer: that machine ran it for the first time.
    """
    if not results.column:
        return 0
    entries = catalogue()
    known = [(name, release, cell) for name, release, cell in results.cells if name in entries and _answered(cell)]
    for patch_id, release, cell in known:
        proofs.store(entries[patch_id], results.column, release, cell, directory)
    return len(known)


def _answered(cell: Cell) -> bool:
    return "error" not in (cell.without.outcome, cell.patched.outcome)


def _cell(data: Mapping[str, Any]) -> Cell:
    return Cell(**{**data, "without": Run(**data["without"]), "patched": Run(**data["patched"])})


def _marked(cells: tuple[tuple[str, str, Cell], ...], ran: Mapping[str, Fingerprint]) -> list[tuple[str, str, Cell]]:
    """The cells; those of patches that have changed since the folder was made are marked so."""
    entries, marked = catalogue(), []
    for patch_id, release, cell in cells:
        changed = patch_id in entries and fingerprints.of(entries[patch_id]) != ran[patch_id]
        marked.append((patch_id, release, replace(cell, earlier=ran[patch_id]) if changed else cell))
    return marked


def _lines(machine: Mapping[str, Any], seconds: float, items: list[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{machine['device']}, torch {machine['versions']['torch']}, driver {machine['driver'] or 'none'}: {seconds} s"
    ]
    for kind in dict.fromkeys(item["kind"] for item in items):
        states = Counter(item["state"] for item in items if item["kind"] == kind)
        lines.append(f"{kind}: " + ", ".join(f"{count} {state}" for state, count in states.items()))
    for item in items:
        if item["state"] in ("wrong", "failed", "differs", "bug not shown"):
            lines.append(f"{item['name']} on deepspeed {item['release']}: {item['state']}: {item['why']}")
    return lines
