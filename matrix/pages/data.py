"""The data of the matrix, as build/pages/matrix/index.html contains it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dsfix.catalogue.registry import Entry
from matrix.proofs import Run

from . import text
from .evidence import Column, Evidence, Judged

# the values of a cell, in the order in which the page lists them
_PATHS = (
    ("state",),
    ("why",),
    ("without", "outcome"),
    ("without", "patch"),
    ("without", "detail"),
    ("with", "outcome"),
    ("with", "patch"),
    ("with", "detail"),
    ("versions",),
    ("device",),
    ("preloaded",),
    ("date",),
)


def tree(evidence: Evidence) -> dict[str, Any]:
    """Everything that the page shows, as plain data."""
    return {
        "environments": {
            each.name: {"python": each.python, **each.distributions}
            for each in (column.environment for column in evidence.columns)
        },
        "columns": {each.name: _column(each) for each in evidence.columns},
        "releases": {each.deepspeed: each.released for each in evidence.table.releases},
        "patches": {each.id: _patch(each, evidence) for each in evidence.entries},
        "cells": {
            patch_id: {
                column: {release: _cell(judged) for release, judged in releases.items()}
                for column, releases in columns.items()
            }
            for patch_id, columns in evidence.cells.items()
        },
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "environment": column.environment.name,
        "releases": list(column.releases),
        "command": column.command,
    }


def _patch(entry: Entry, evidence: Evidence) -> dict[str, Any]:
    patch = entry.patch
    return {
        "title": patch.title,
        "severity": patch.severity.value,
        "affects": dict(patch.affects),
        "fixed_in": patch.fixed_in,
        "continued_by": patch.continued_by,
        "default": patch.default,
        "symptom": patch.symptom,
        "upstream": list(patch.upstream),
        "story": text.story(entry),
        "proven": {column.name: text.proven(evidence, entry.id, column) for column in evidence.columns},
    }


def _cell(judged: Judged) -> dict[str, Any]:
    verdict = {"state": judged.state.value, "why": judged.why}
    cell = judged.cell
    if cell is None:
        return verdict
    runs = {"without": _run(cell.without), "with": _run(cell.patched)}
    facts = {"versions": dict(cell.versions), "device": cell.device, "preloaded": cell.preloaded, "date": cell.date}
    return {**verdict, **runs, **facts}


def _run(run: Run) -> dict[str, Any]:
    return {"outcome": run.outcome, "patch": run.patch, "detail": run.detail}


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same data with each cell as a list of indices into `values`, because most values occur many times."""
    values: dict[str, int] = {}

    def pack(cell: Mapping[str, Any]) -> list[int]:
        found = [_get(cell, path) for path in _PATHS if path[0] in cell]
        return [values.setdefault(json.dumps(value), len(values)) for value in found]

    cells = {
        patch_id: {
            column: {release: pack(cell) for release, cell in releases.items()} for column, releases in columns.items()
        }
        for patch_id, columns in data["cells"].items()
    }
    return {**data, "cells": cells, "paths": _PATHS, "values": [json.loads(value) for value in values]}


def _get(cell: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = cell
    for key in path:
        value = value[key]
    return value
