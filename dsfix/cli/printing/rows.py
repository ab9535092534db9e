"""Rows of a name and a text, wrapped to the terminal's width, below the title of what they are about."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from ...explain.problems import examined_from

_WIDTH = 120


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Prints rows (name, text); those without a text are left out."""
    for name, text in rows:
        for number, line in enumerate(_wrapped(text)):
            print(f"    {name if not number else '':<9} {line}")


def ranges(affects: Iterable[Mapping[str, str]]) -> str:
    """The ranges, or nothing if one of them has no bound."""
    shown = list(dict.fromkeys(_one(examined_from(each)) for each in affects))
    return "; or ".join(shown) if all(shown) else ""


def _one(affects: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {specifiers}" for name, specifiers in affects.items())


def _wrapped(text: str) -> Iterator[str]:
    if text:
        terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
        width = shutil.get_terminal_size().columns if terminal else _WIDTH
        yield from textwrap.wrap(text, max(40, width - 14), break_long_words=False, break_on_hyphens=False)
