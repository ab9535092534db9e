"""Shared by commands with their own records: reporting what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from dsfix.cli.exits import OK, TROUBLE


def complain(name: str, sentences: Iterable[str]) -> int:
    """Print the sentences to standard error; 1 if there are any, else 0."""
    complaints = list(sentences)
    for sentence in complaints:
        print(f"{name}: {sentence}", file=sys.stderr)
    return TROUBLE if complaints else OK
