"""Printing: JSON, tables, rows and lines, as wide as the terminal.

Without a terminal text is wrapped at 120 columns, which logs and issues show unbroken, and a line of `print_grouped` is
whole, so that `grep` finds all of it; $COLUMNS sets a different width.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from ...outcome import Outcome

_NARROWEST = 80  # columns of a table; less leaves no room for the reasons


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def wrapped(text: str, first: str = "", others: str = "") -> Iterator[str]:
    """Yields the lines of a paragraph. first, others: what they begin with."""
    yield from textwrap.wrap(
        text,
        max(width(), len(others) + 40),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_paragraph(text: str, others: str = "") -> None:
    """Prints a paragraph, nothing of an empty one. others: what its other lines begin with."""
    for line in wrapped(text, others=others):
        print(line)


def print_rows(rows: Iterable[tuple[str, str]], column: int, indent: str = "") -> None:
    """Prints rows (name, text), the texts from `column` on; those without a text are left out."""
    for name, text in rows:
        for line in wrapped(text, f"{indent}{name:<{column}}", " " * (len(indent) + column)):
            print(line)


def print_grouped(rows: Sequence[tuple[str, str, str]]) -> None:
    """Prints (group, name, text) as a line each, cut at the terminal's edge, the groups below their headings."""
    edge = width() if sys.stdout.isatty() or "COLUMNS" in os.environ else None
    column = min(max((len(name) for _, name, _ in rows), default=0), width() // 3)
    for group, members in groupby(rows, key=lambda row: row[0]):
        print(f"\n{group}")
        for _, name, text in members:
            line = f"  {name:<{column}}  {text}"
            if edge is not None and len(line) > edge:
                line = line[: edge - 1] + "…" if encodes("…") else line[: edge - 3] + "..."
            print(line)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows of cells below their headings, the last column wrapped at the terminal's edge."""
    every = [columns, ["-" * len(name) for name in columns], *rows]
    widths = [max(len(row[place]) for row in every) for place in range(len(columns) - 1)]
    left = max(width(), _NARROWEST) - sum(widths) - 2 * len(widths)
    for *cells, text in every:
        start = "".join(f"{cell:<{size}}  " for cell, size in zip(cells, widths))
        for line in (piece for part in text.split("\n") for piece in textwrap.wrap(part, max(left, 20)) or [""]):
            print((start + line).rstrip())
            start = " " * len(start)


def encodes(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(line: str) -> str:
    """The line with control characters replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in line)


def outcome_label(outcome: Outcome) -> str:
    """What the installed DeepSpeed's verdict is called in text: a pending patch applies."""
    return "applies" if outcome is Outcome.PENDING else outcome.value


def count_summary(outcomes: Iterable[Outcome]) -> str:
    """ "52 not affected, 3 disabled"."""
    every = list(outcomes)
    return ", ".join(f"{every.count(each)} {each.value.replace('-', ' ')}" for each in Outcome if each in every)


class Progress:
    """Progress on standard error: one line per finished step, on a terminal also the step under way.

    `start` names the current step of `steps`, None if their number is unknown; `done` reports its result and counts
    steps as finished, with the time that is left if they are `alike`."""

    def __init__(self, steps: int | None, alike: bool = False) -> None:
        self._of, self._finished, self._what = "" if steps is None else f"/{steps}", 0, ""
        self._steps, self._began = steps if steps and alike else 0, time.monotonic()

    def start(self, what: str) -> None:
        self._what = what
        if sys.stderr is not None and sys.stderr.isatty():
            self._print(f"[{self._finished + 1}{self._of}] {what} ...", "\r")

    def done(self, result: str, steps: int = 1) -> None:
        self._finished += steps
        if self._finished < self._steps:
            seconds = (time.monotonic() - self._began) * (self._steps / self._finished - 1)
            result += f", about {f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} minutes'} left"
        self._print(f"[{self._finished}{self._of}] {self._what}: {result}", "\n")

    def _print(self, text: str, end: str) -> None:
        if sys.stderr is not None:  # None: closed by the caller
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                print(text, end=end, file=sys.stderr, flush=True)
