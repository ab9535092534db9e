"""What a text has to contain for a regular expression to match it: plain strings, which are found much faster."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

# the only place where Python says how it understands an expression
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_SHORTEST = 4  # characters; less is everywhere
_TELLING = 12

Clause = frozenset  # of str; a text that matches contains at least one of them


def required(pattern: str) -> list[Clause[str]]:
    """The clauses of a regular expression, in its order; a text that matches satisfies all of them.

    Raises:
        re.error: for what is no regular expression.
    """
    parsed = _parser.parse(pattern)
    return [] if parsed.state.flags & re.IGNORECASE else _clauses(parsed)


def trigger(clauses: list[Clause[str]]) -> Clause[str]:
    """The clause to look for first: a message ends what the frames of a traceback begin. Empty where there is none."""
    telling = [clause for clause in clauses if _least(clause) >= _TELLING]
    return telling[-1] if telling else max(clauses, key=_least, default=frozenset())


def _least(clause: Clause[str]) -> int:
    return min(map(len, clause))


def _clauses(parsed: Any) -> list[Clause[str]]:
    """Walks a sequence: runs of characters within a line, and what its groups and alternatives require."""
    clauses: list[Clause[str]] = []
    run = ""
    for operator, argument in [*parsed, ("END", None)]:
        name = str(operator)
        if name == "LITERAL" and argument != ord("\n"):
            run += chr(argument)
            continue
        if len(run) >= _SHORTEST:
            clauses.append(frozenset([run]))
        run = ""
        if name == "SUBPATTERN":
            clauses += _clauses(argument[-1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            clauses += _clauses(argument[2])
        elif name == "BRANCH":
            each = [_clauses(branch) for branch in argument[1]]
            if all(each):
                clauses.append(frozenset().union(*(max(found, key=_least) for found in each)))
    return clauses
