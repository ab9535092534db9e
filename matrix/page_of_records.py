"""Shared by commands with their own records: writing the page in docs/, and reporting what is wrong with records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from dsfix.cli.exits import OK, TROUBLE


def write(name: str, docs: Any, found: Sequence[Any], check: bool) -> int:
    """Write `docs.PAGE`, or with `check` only report whether it is stale. docs: the command's module of that name."""
    status = complain(name, docs.faults(found))
    text = docs.render(found)
    stale = not docs.PAGE.is_file() or docs.PAGE.read_text(encoding="utf-8") != text
    page = f"docs/{docs.PAGE.name}"
    if check:
        return complain(name, [f"{page} is stale: `{docs.COMMAND} -- docs` writes it"]) if stale else status
    docs.PAGE.write_text(text, encoding="utf-8")
    print(f"{page} {'written' if stale else 'is unchanged'}")
    return OK


def complain(name: str, sentences: Iterable[str]) -> int:
    """Print the sentences to standard error; 1 if there are any, else 0."""
    complaints = list(sentences)
    for sentence in complaints:
        print(f"{name}: {sentence}", file=sys.stderr)
    return TROUBLE if complaints else OK
