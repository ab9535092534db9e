"""What the commands with records of their own have in common: the page in docs/, and what is wrong with the records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from dsfix.cli.exits import OK, TROUBLE


def write(name: str, docs: Any, found: Sequence[Any], check: bool) -> int:
    """Write `docs.PAGE`, or with `check` only say whether it is up to date. docs: the command's module of that name."""
    status = complain(name, docs.faults(found))
    text = docs.render(found)
    stale = not docs.PAGE.is_file() or docs.PAGE.read_text(encoding="utf-8") != text
    page = f"docs/{docs.PAGE.name}"
    if check:
        return complain(name, [f"{page} is stale: `{docs.COMMAND} -- docs` writes it"]) if stale else status
    docs.PAGE.write_text(text, encoding="utf-8")
    print(f"{page} {'written' if stale else 'is what it was'}")
    return OK


def complain(name: str, sentences: Iterable[str]) -> int:
    """1 where there are any; they go to standard error."""
    told = list(sentences)
    for sentence in told:
        print(f"{name}: {sentence}", file=sys.stderr)
    return TROUBLE if told else OK
