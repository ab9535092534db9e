"""build/pages/upstream-patches.md, from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from matrix.pull_requests.records import Record, Row

COMMAND = "python -m tox run -e upstream-tests -- patches"
_WANTED = 10
_HEAD = """\
# Patches for DeepSpeed itself

`python -m dsfix diff ID --upstream` writes the fix of one bug as a change of DeepSpeed's repository, with a test in the
form of its unit tests: [commands.md](../../docs/commands.md#a-pull-request-for-deepspeed).

    {command} run --clone DIR

does so for each patch whose bug a clone of DeepSpeed has, and runs its test there without the fix and with it, each fix
alone. At {tree}, on {date}, on two CPU cores without a GPU: {applied} of {all} fixes can be written, and all of these
pass `git apply --check`; the tests of {shown} were seen to fail before and to pass after.
"""


def faults(found: Sequence[Record]) -> list[str]:
    """What is wrong with the record, in sentences."""
    shown = [row for record in found for row in record.rows.values() if row.shown]
    few = [f"{len(shown)} patches are shown, not {_WANTED}"] if len(shown) < _WANTED else []
    return few + [f"{name}: {row.applies}" for record in found for name, row in record.rows.items() if row.applies]


def render(found: Sequence[Record]) -> str:
    [record] = found
    kinds: dict[str, dict[str, Row]] = {}
    for name, row in sorted(record.rows.items()):
        kinds.setdefault(_kind(row), {})[name] = row
    head = _HEAD.format(
        command=COMMAND,
        tree=record.tree,
        date=record.date,
        all=len(record.rows),
        applied=sum(row.lines > 0 and not row.applies for row in record.rows.values()),
        shown=len(kinds.get("shown", ())),
    )
    return "\n".join([head, *(table for kind in _TABLES if (table := _table(kind, kinds.get(kind, {}))))])


def _kind(row: Row) -> str:
    if row.shown:
        return "shown"
    if row.with_others[:1] == ["passed"]:
        return "together"
    if row.before[:1] == ["skipped"]:
        return "skipped"
    return "rest" if row.test else "without"


_Cells = Callable[[Row], "list[str]"]
_TABLES: Mapping[str, tuple[str, str, tuple[str, ...], _Cells]] = {
    "shown": (
        "Fails before, passes after",
        "",
        ("lines of the fix", "the failure"),
        lambda row: [str(row.lines), _told(row.before)],
    ),
    "together": (
        "Passes with other fixes only",
        "The test meets another bug of this page, too: it passes with the fixes of all.",
        ("lines of the fix", "the failure", "with this fix alone"),
        lambda row: [str(row.lines), _told(row.before), _told(row.after)],
    ),
    "skipped": (
        "Skipped here",
        "As DeepSpeed's tests do where the device cannot do it. These have not been run.",
        ("lines of the fix", "reason"),
        lambda row: [str(row.lines), row.before[1]],
    ),
    "rest": (
        "Not shown",
        "",
        ("lines of the fix", "before", "after"),
        lambda row: [str(row.lines), ": ".join(row.before), ": ".join(row.after)],
    ),
    "without": (
        "Without a test, or without a fix",
        "",
        ("why",),
        lambda row: ["; ".join(note.partition(" ")[2] for note in row.notes)],
    ),
}


def _told(seen: list[str]) -> str:
    return seen[1].removeprefix("AssertionError: ")


def _table(kind: str, rows: Mapping[str, Row]) -> str:
    if not rows:
        return ""
    title, told, heads, cells = _TABLES[kind]
    lines = [_line(["patch", *heads]), _line(["---"] * (len(heads) + 1))]
    lines += [_line([f"`{name}`", *cells(row)]) for name, row in rows.items()]
    return "\n".join([f"## {title}\n", *([f"{told}\n"] if told else []), *lines]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
