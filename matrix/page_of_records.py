"""Shared by commands with their own records: reporting what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dsfix.cli.exits import OK, TROUBLE


def write(name: str, docs: Any, found: Sequence[Any], check: bool) -> int:
    """Write `docs.PAGE` into build/pages/, or with `check` only report what is wrong."""
    status = complain(name, docs.faults(found))
    if check:
        return status
    page = Path(__file__).resolve().parents[1] / "build" / "pages" / docs.PAGE.name
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(docs.render(found), encoding="utf-8")
    return OK


def complain(name: str, sentences: Iterable[str]) -> int:
    """Print the sentences to standard error; 1 if there are any, else 0."""
    complaints = list(sentences)
    for sentence in complaints:
        print(f"{name}: {sentence}", file=sys.stderr)
    return TROUBLE if complaints else OK
