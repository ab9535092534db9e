"""docs/matrix.md: the matrix as a page that GitHub shows."""

from __future__ import annotations

import itertools

from matrix import table
from matrix.proofs import State
from matrix.table import Release

from . import text
from .evidence import Column, Evidence

GLYPHS = {
    State.CURED: ("●", "the bug was seen without the patch, and not with it"),
    State.NOT_AFFECTED: ("·", "no bug, and the patch stays out"),
    State.CANNOT_TELL: ("?", "it could not be shown there; the reasons are below the table"),
    State.WRONG: ("✕", "what was seen contradicts the patch's range"),
    State.NOT_RUN: ("-", "not run with this version of the patch"),
}

_HEAD = """\
# The matrix

Every patch on every DeepSpeed release from {first} to {last}: the reproduction of its bug, in a process of its own,
once with all other patches and without this one, and once with it as well. Where that says yes or no, the process may
be a fork of one that had imported torch already (`preloaded`); all else was run in a fresh process. Written by
`python -m tox run -e docs` from what `python -m tox run -e matrix` has recorded in `matrix/proofs/`.

The same with what was seen in each cell, as a page for the browser: [matrix/index.html](matrix/index.html) (open it in
a clone, or download it). The patches: [catalogue.md](catalogue.md).

"""

_SCHEMA = """\

## The data

[matrix/matrix.json](matrix/matrix.json) is one object:

- `environments`: name -> what the releases are run beside: distribution -> version, and `python`
- `columns`: name -> its `environment`, the `releases` run in it, the `command` that runs what it lacks
- `releases`: DeepSpeed release -> day of its upload
- `patches`: id -> `title`, `severity`, `affects` (distribution -> specifiers), `fixed_in` (null: no release so far),
  `continued_by` (id of the patch for the releases after these, which have the bug in other code, or null),
  `default` (on unless it is disabled), `symptom` (a regular expression, or empty), `upstream` (links), `story`
  (heading -> text), `proven` (column -> its range in words)
- `cells`: id -> column -> release -> `state` ({states}), `why`, and unless it was not run: `without` and `with` the
  patch (each `outcome`: bug, no-bug, cannot-tell, error or timeout; `patch`: what became of it in that process;
  `detail`: what was seen; `seconds`, wall-clock), `versions` (distribution -> version), `device`, `preloaded`, `date`
"""


def render(evidence: Evidence) -> str:
    """The page's Markdown."""
    releases = evidence.releases
    parts = [_HEAD.format(first=releases[0], last=releases[-1])]
    parts += [f"- `{glyph}` {state.value}: {meaning}\n" for state, (glyph, meaning) in GLYPHS.items()]
    parts += [_section(evidence, column) for column in evidence.columns]
    parts.append(_releases(evidence))
    return "".join(parts) + _SCHEMA.format(states=", ".join(state.value for state in State))


def _section(evidence: Evidence, column: Column) -> str:
    minors = [list(group) for _, group in itertools.groupby(column.releases, key=_minor)]
    heads = ["patch", *(f"{group[0]} to .{_patch(group[-1])}" for group in minors)]
    rows = []
    for entry in evidence.entries:
        cells = evidence.cells[entry.id][column.name]
        glyphs = ["".join(GLYPHS[cells[release].state][0] for release in group) for group in minors]
        rows.append([f"[`{entry.id}`](catalogue.md#{entry.id})", *(f"`{each}`" for each in glyphs)])
    return f"\n## {column.name}\n\n{_facts(evidence, column)}\n\n{text.table(heads, rows)}{_reasons(evidence, column)}"


def _facts(evidence: Evidence, column: Column) -> str:
    """When the column was run, beside what, and how many cells are in which state."""
    counts = ", ".join(f"{number} {state.value}" for state, number in evidence.counts(column).items() if number)
    ran = evidence.ran(column)
    if not ran:
        return f"Cells: {counts}. `{column.command}` runs them."
    dates = sorted({cell.date for cell in ran})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    names = dict.fromkeys(name for cell in ran for name in cell.versions if name != "deepspeed")
    versions = [f"{name} {' / '.join(sorted({cell.versions.get(name) or 'none' for cell in ran}))}" for name in names]
    devices = sorted({cell.device for cell in ran} - {""})
    hours = sum(cell.without.seconds + cell.patched.seconds for cell in ran) / 3600
    return (
        f"Cells: {counts}. Run on {when} with `{column.command}`: {', '.join(versions)}; on {', '.join(devices)}; "
        f"{hours:.1f} hours of processes."
    )


def _reasons(evidence: Evidence, column: Column) -> str:
    """One line for each patch and reason where the proof is no plain yes or no."""
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
    """The table of releases, those that follow each other and have the same facts in one row."""
    heads = ["DeepSpeed", "released", "its metadata asks for", "its metadata names Python", "run beside"]
    rows = []
    for facts, group in itertools.groupby(evidence.table.releases, key=_release_facts):
        several = list(group)
        first, last = several[0], several[-1]
        numbers, days = (first.deepspeed, last.deepspeed), (first.released, last.released)
        rows.append([*(" to ".join(dict.fromkeys(ends)) for ends in (numbers, days)), *facts])
    return f"\n## The releases\n\nFrom `matrix/releases.json`.\n\n{text.table(heads, rows)}"


def _release_facts(release: Release) -> tuple[str, str, str]:
    asked = [f"`{name}{specifiers}`" for name, specifiers in release.requires.items()]
    return ", ".join(asked), f"{release.pythons[0]} to {release.pythons[-1]}", ", ".join(release.environments)


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _patch(release: str) -> str:
    return release.split(".")[2]
