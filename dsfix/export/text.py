"""Source text, the places of its syntax tree's nodes, and changes there."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import accumulate

Change = tuple[int, int, str]  # what replaces the bytes from start to end


class Inexportable(Exception):
    """One sentence that says why something cannot be written for upstream."""


class Text:
    """Places are counted in bytes, as the syntax tree counts columns."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self.bytes = source.encode()
        self._lines = [0, *accumulate(map(len, self.bytes.splitlines(keepends=True)))]

    def start(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> int:
        return self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def lines(self, node: ast.stmt) -> tuple[int, int]:
        """The place of the whole lines of a statement, decorators and the comments above it included."""
        decorators = getattr(node, "decorator_list", ())
        first = min([node.lineno, *(each.lineno for each in decorators)]) - 1
        while first and self._line(first - 1).lstrip().startswith(b"#"):
            first -= 1
        return self._lines[first], self._lines[node.end_lineno or 0]

    def bytes_before(self, line: int) -> int:
        """The place of the beginning of a line, counted from 1."""
        return self._lines[line - 1]

    def _line(self, number: int) -> bytes:
        return self.bytes[self._lines[number] : self._lines[number + 1]]

    def between(self, start: int, end: int) -> str:
        return self.bytes[start:end].decode()

    def find(self, what: str, start: int, end: int) -> int:
        return self.bytes.index(what.encode(), start, end)

    def changed(self, changes: Iterable[Change], within: tuple[int, int] | None = None) -> str:
        """The text, or the part of it `within`, after these changes; one inside another is lost."""
        first, last = within or (0, len(self.bytes))
        pieces, at = [], first
        for start, end, new in sorted(changes, key=lambda change: (change[0], -change[1])):
            if start < at or end > last:
                continue
            pieces += [self.bytes[at:start], new.encode()]
            at = end
        return b"".join([*pieces, self.bytes[at:last]]).decode()
