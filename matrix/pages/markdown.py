"""build/pages/matrix.md: the matrix as a Markdown page."""

from __future__ import annotations

import itertools

from matrix import table
from matrix.proofs import State
from matrix.table import Release

from . import text
from .evidence import Column, Evidence
from .patches import reproduced

GLYPHS = {
    State.FIXED: ("●", "the bug occurred without the patch and not with it"),
    State.NOT_AFFECTED: ("·", "no bug, and the patch was not applied"),
    State.CANNOT_TELL: ("?", "it could not be determined; the reasons are below the table"),
    State.WRONG: ("✕", "the result contradicts the patch's range"),
    State.NOT_RUN: ("-", "not run with this version of the patch"),
}

_HEAD = """\
# The matrix

Every patch on the DeepSpeed releases from {first} to {last}: the reproduction of its bug, in a separate process, once
with all patches but this one, and once with all patches. A plain yes or no may come from a process forked from one that
had already imported torch (`preloaded`); everything else was run in a fresh process. Written by
`python -m tox run -e pages` from the records in `matrix/proofs/`, which `python -m tox run -e matrix` writes.

{reproduced}

[matrix/index.html](matrix/index.html) shows the same table with the details of each cell, in a browser. The patches:
[catalogue.md](catalogue.md).

The first column is that of all releases; the others, with another torch, Python or a GPU, have those that people run
with it, and of these the ends of each patch's range: the first and the last with the bug, and the nearest without it.

"""


def render(evidence: Evidence) -> str:
    """The page's Markdown."""
    releases = evidence.releases
    parts = [_HEAD.format(first=releases[0], last=releases[-1], reproduced=reproduced(evidence))]
    parts += [f"- `{glyph}` {state.value}: {meaning}\n" for state, (glyph, meaning) in GLYPHS.items()]
    parts += [_section(evidence, column) for column in evidence.columns]
    parts.append(_releases(evidence))
    return "".join(parts)


def _section(evidence: Evidence, column: Column) -> str:
    minors = [list(group) for _, group in itertools.groupby(column.releases, key=_minor)]
    heads = ["patch", *(f"{group[0]} to .{_patch(group[-1])}" for group in minors)]
    rows = []
    for entry in evidence.entries:
        cells = evidence.cells[entry.id][column.name]
        if column is not evidence.columns[0] and all(each.cell is None for each in cells.values()):
            continue
        glyphs = ["".join(GLYPHS[cells[release].state][0] for release in group) for group in minors]
        rows.append([f"[`{entry.id}`](catalogue.md#{entry.id})", *(f"`{each}`" for each in glyphs)])
    return f"\n## {column.name}\n\n{_facts(evidence, column)}\n\n{text.table(heads, rows)}{_reasons(evidence, column)}"


def _facts(evidence: Evidence, column: Column) -> str:
    """When and with what the column was run, and the number of cells by state."""
    ran = evidence.ran(column)
    if not ran:
        return f"No cell has been run: `{column.command}` runs them."
    found = evidence.counts(column)
    if column is not evidence.columns[0]:
        del found[State.NOT_RUN]  # most cells are not at an end
    counts = ", ".join(f"{number} {state.value}" for state, number in found.items() if number)
    dates = sorted({cell.date for cell in ran})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    names = dict.fromkeys(name for cell in ran for name in cell.versions if name != "deepspeed")
    versions = [f"{name} {' / '.join(sorted({cell.versions.get(name) or 'none' for cell in ran}))}" for name in names]
    devices = sorted({cell.device for cell in ran} - {""})
    return f"Cells: {counts}. Run on {when} with `{column.command}`: {', '.join(versions)}; on {', '.join(devices)}."


def _reasons(evidence: Evidence, column: Column) -> str:
    """One line for each patch and reason that is not a plain yes or no."""
    lines = []
    for entry in evidence.entries:
        cells = evidence.cells[entry.id][column.name]
        for state in (State.WRONG, State.CANNOT_TELL):
            reasons: dict[str, list[str]] = {}
            for release, judged in cells.items():
                if judged.state is state:
                    reasons.setdefault(judged.why, []).append(release)
            for why, on in reasons.items():
                reason = text.escape(" ".join(why.split()))
                lines.append(f"- `{entry.id}`, {state.value} on {table.span(on, column.releases)}: {reason}\n")
    return "\n" + "".join(lines) if lines else ""


def _releases(evidence: Evidence) -> str:
    """The table of releases; consecutive ones with the same facts share a row."""
    heads = ["DeepSpeed", "released", "requires", "Python"]
    rows = []
    for facts, group in itertools.groupby(evidence.table.releases, key=_release_facts):
        several = list(group)
        first, last = several[0], several[-1]
        numbers, days = (first.deepspeed, last.deepspeed), (first.released, last.released)
        rows.append([*(" to ".join(dict.fromkeys(ends)) for ends in (numbers, days)), *facts])
    source = "From `matrix/releases.json`; requirements and Python versions are those of the metadata."
    return f"\n## The releases\n\n{source}\n\n{text.table(heads, rows)}"


def _release_facts(release: Release) -> tuple[str, str]:
    asked = [f"`{name}{specifiers}`" for name, specifiers in release.requires.items()]
    return ", ".join(asked), f"{release.pythons[0]} to {release.pythons[-1]}"


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _patch(release: str) -> str:
    return release.split(".")[2]
