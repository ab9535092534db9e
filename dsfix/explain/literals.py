"""The plain strings that a match of a regular expression must contain: searching for them is much faster."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

# the only place where Python exposes the parsed expression
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_SHORTEST = 4  # bytes; shorter strings are everywhere
_DISTINCTIVE = 12
_BLOCK = 4  # bytes

Clause = frozenset  # of str; a matching text contains at least one of them


class Literals:
    """Finds which of many strings a text contains, in a time that hardly depends on their number: it searches only for
    those whose blocks of four bytes, from one of the four first bytes on, are all among the blocks of the text."""

    def __init__(self, strings: Iterable[bytes]) -> None:
        self._strings = [
            (string, [frozenset(_blocks(string[start:])) for start in range(_BLOCK)])
            for string in dict.fromkeys(strings)
        ]

    def within(self, text: bytes) -> list[bytes]:
        there = set(_blocks(text))
        return [each for each, shifted in self._strings if any(parts <= there for parts in shifted) and each in text]


def _blocks(text: bytes) -> list[int]:
    return memoryview(text)[: len(text) // _BLOCK * _BLOCK].cast("I").tolist()


def required(pattern: str) -> list[Clause[str]]:
    """Returns the clauses of a regular expression in order; a matching text satisfies all of them."""
    parsed = _parser.parse(pattern)
    return [] if parsed.state.flags & re.IGNORECASE else _clauses(parsed)


def trigger(clauses: list[Clause[str]]) -> Clause[str]:
    """Returns the clause to search for: the last distinctive one, as messages follow frames; else an empty one."""
    distinctive = [clause for clause in clauses if _least(clause) >= _DISTINCTIVE]
    return distinctive[-1] if distinctive else max(clauses, key=_least, default=frozenset())


def _least(clause: Clause[str]) -> int:
    return min(len(each.encode()) for each in clause)


def _clauses(parsed: Any) -> list[Clause[str]]:
    """Returns the clauses of a sequence: literal runs within a line, and those of its groups and alternatives."""
    clauses: list[Clause[str]] = []
    run = ""
    for operator, argument in [*parsed, ("END", None)]:
        name = str(operator)
        if name == "LITERAL" and argument != ord("\n"):
            run += chr(argument)
            continue
        if len(run.encode()) >= _SHORTEST:
            clauses.append(frozenset([run]))
        run = ""
        if name == "SUBPATTERN":
            if not argument[1] & re.IGNORECASE:
                clauses += _clauses(argument[-1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            clauses += _clauses(argument[2])
        elif name == "BRANCH":
            each = [_clauses(branch) for branch in argument[1]]
            if all(each):
                clauses.append(frozenset().union(*(max(branch_clauses, key=_least) for branch_clauses in each)))
    return clauses
