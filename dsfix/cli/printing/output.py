"""Printing: JSON; tables as wide as the terminal, or 120 columns without one; what they leave out."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...outcome import Outcome

_NARROWEST = 80  # columns; less leaves no room for the reasons
_NAMED = 5  # disabled patches
_STYLES = {
    Outcome.PENDING: "green",
    Outcome.APPLIED: "green",
    Outcome.ALREADY_FIXED: "cyan",
    Outcome.NOT_AFFECTED: "dim",
    Outcome.DISABLED: "yellow",
}


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[tuple[Sequence[str], str]]) -> None:
    """Rows are (cells, style of the second cell)."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    drawn = io.StringIO()  # writing to a closed pipe itself, rich would end the process
    width = None if terminal or "COLUMNS" in os.environ else 120
    console = Console(file=drawn, width=width, force_terminal=terminal)
    console.width = max(console.width, _NARROWEST)
    lines = box.SIMPLE_HEAD if (sys.stdout.encoding or "").lower().startswith("utf") else box.ASCII2
    table = Table(*columns, box=lines, pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    table.columns[-1].overflow = "fold"
    for cells, style in rows:
        table.add_row(Text(cells[0]), Text(cells[1], style=style), *(Text(cell) for cell in cells[2:]))
    console.print(table)
    print(drawn.getvalue(), end="")


def encodes(text: str) -> bool:
    """Whether standard output can encode this text."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(line: str) -> str:
    """The line with control characters replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in line)


def style(outcome: Outcome) -> str:
    return _STYLES.get(outcome, "red")


def word(outcome: Outcome) -> str:
    """What the installed DeepSpeed's verdict is called in text: a pending patch applies."""
    return "applies" if outcome is Outcome.PENDING else outcome.value


def print_rest(unlisted: Mapping[str, Outcome], command: str) -> None:
    """Prints the number of unlisted patches by outcome, and the names of a few disabled ones.

    unlisted: id -> outcome. command: lists them.
    """
    counts = Counter(unlisted.values())
    if counts:
        counted = ", ".join(f"{counts[each]} {each.value.replace('-', ' ')}" for each in Outcome if counts[each])
        print(f"{counted}: `{command}` shows them.")
    if 0 < counts[Outcome.DISABLED] <= _NAMED:
        print(f"Disabled: {', '.join(name for name, each in unlisted.items() if each is Outcome.DISABLED)}.")
