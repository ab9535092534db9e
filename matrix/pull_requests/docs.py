"""docs/upstream-patches.md, from the record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matrix.pull_requests.records import Record, Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "upstream-patches.md"
COMMAND = "python -m tox run -e upstream-tests -- patches"
_WANTED = 10


def faults(found: Sequence[Record]) -> list[str]:
    """What is wrong with the record, in sentences."""
    shown = [row for record in found for row in record.rows.values() if row.shown]
    few = [f"{len(shown)} patches are shown, not {_WANTED}"] if len(shown) < _WANTED else []
    return few + [f"{name}: {row.applies}" for record in found for name, row in record.rows.items() if row.applies]


def render(found: Sequence[Record]) -> str:
    [record] = found
    rows = record.rows
    shown = {name: row for name, row in rows.items() if row.shown}
    together = {name: row for name, row in rows.items() if row.with_others[:1] == ["passed"]}
    skipped = {name: row for name, row in rows.items() if row.before[:1] == ["skipped"]}
    none = {name: row for name, row in rows.items() if not row.test}
    rest = {name: row for name, row in rows.items() if not any(name in each for each in (shown, together, skipped, none))}
    parts = [
        "# Patches for DeepSpeed itself\n\n"
        "`python -m dsfix diff ID --upstream` writes the fix of one bug as a change of DeepSpeed's repository, with a "
        "test in the form of DeepSpeed's unit tests ([commands.md](commands.md#a-pull-request-for-deepspeed)). "
        f"{len(rows)} patches are for bugs that DeepSpeed {record.tree} has; the diffs of {len(rows) - len(_without(rows))} "
        f"pass `git apply --check`, and of {len(shown)} the test was seen to fail before the fix and to pass after it, "
        f"on {record.date}, on two CPU cores without a GPU:\n\n"
        f"    {COMMAND} run --clone DIR\n\n"
        "where DIR is a clone of DeepSpeed at that tag. Each fix was applied alone.\n",
        _table("Fails before, passes after", "", ("lines of the fix", "the failure"), shown, _failure),
        _table(
            "Passes with other fixes only",
            "The test meets another bug of this list as well: it passes with the fixes of all of them.",
            ("lines of the fix", "the failure", "after this fix alone"),
            together,
            lambda row: [*_failure(row), row.after[1]],
        ),
        _table(
            "Skipped here",
            "As upstream's tests do where the device cannot do it; they run on a GPU.",
            ("lines of the fix", "reason"),
            skipped,
            lambda row: [str(row.lines), row.before[1]],
        ),
        _table("Not shown", "", ("before", "after"), rest, lambda row: [": ".join(row.before), ": ".join(row.after)]),
        _table(
            "Without a test, or without a fix",
            "",
            ("why",),
            none,
            lambda row: [" ".join(note.partition(" ")[2] for note in row.notes)],
        ),
    ]
    return "\n".join(part for part in parts if part)


def _without(rows: dict[str, Row]) -> list[str]:
    return [name for name, row in rows.items() if not row.lines or row.applies]


def _failure(row: Row) -> list[str]:
    return [str(row.lines), row.before[1]]


def _table(title: str, told: str, heads: Sequence[str], rows: dict[str, Row], cells: object) -> str:
    if not rows:
        return ""
    head = [f"## {title}\n", *([f"{told}\n"] if told else []), _line(["patch", *heads]), _line(["---"] * (len(heads) + 1))]
    return "\n".join([*head, *(_line([f"`{name}`", *cells(row)]) for name, row in sorted(rows.items()))]) + "\n"  # type: ignore[operator]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
