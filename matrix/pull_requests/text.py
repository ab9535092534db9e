"""Source text, the places of its syntax tree's nodes, and changes there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Union

from dsfix.cli.printing.edits import whole_lines
from matrix.fingerprints import tells

Change = tuple[int, int, str]  # what replaces the bytes from start to end
Node = Union[ast.expr, ast.stmt, ast.arg, ast.keyword]

_TYPE_COMMENT = re.compile(r"[ \t]*# type: ignore(\[[^\]\n]*\])?")
_EQUALS = re.compile(rb"\s*=\s*")
_KEPT = ("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")


class Text:
    """Places are counted in bytes, as the syntax tree counts columns. begins: of each line."""

    def __init__(self, source: str) -> None:
        self.tree, self.bytes = ast.parse(source), source.encode()
        lines = self.bytes.splitlines(keepends=True)
        self._lines = [each.decode() for each in lines]
        self.begins = [0, *accumulate(map(len, lines))]

    def start(self, node: Node) -> int:
        return self.begins[node.lineno - 1] + node.col_offset

    def end(self, node: Node) -> int:
        return self.begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def lines(self, node: ast.stmt) -> tuple[int, int]:
        """The place of the whole lines of a statement, decorators and the comments above it included."""
        first, last = whole_lines(self._lines, node)
        return self.begins[first], self.begins[last]

    def between(self, start: int, end: int) -> str:
        return self.bytes[start:end].decode()

    def find(self, what: str, start: int) -> int:
        return self.bytes.index(what.encode(), start)

    def changed(self, changes: Iterable[Change], within: tuple[int, int] | None = None) -> str:
        """The text, or the part of it `within`, after these changes; one inside another is lost."""
        first, last = within or (0, len(self.bytes))
        pieces, at = [], first
        for start, end, new in sorted(changes, key=lambda change: (change[0], -change[1])):
            if start >= at and end <= last:
                pieces += [self.bytes[at:start], new.encode()]
                at = end
        return b"".join([*pieces, self.bytes[at:last]]).decode()


def without_telling(source: str) -> str:
    """The source without the statements that only tell that a patch took effect: DeepSpeed has nobody to tell."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    gone = {line for node in nodes if _tells(node) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    branches = [(node, block) for node in nodes if isinstance(node, ast.If) for block in (node.body, node.orelse)]
    emptied = [block[0] for node, block in branches if block and all(map(_tells, block)) and not _tells(node)]
    written = source.splitlines(keepends=True)
    passes = {
        each.lineno: f"{' ' * each.col_offset}pass\n"
        for each in emptied
        if not written[each.lineno - 1].lstrip().startswith("elif")
    }
    lines = enumerate(written, 1)
    return "".join(passes.get(number, "" if number in gone else line) for number, line in lines)


def _tells(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return not node.orelse and all(map(_tells, node.body))
    return tells(node)


def without_annotations(source: str) -> str:
    """The same code without annotations, which would need imports.

    Fields of a class keep the name of a built-in type, or `object`.
    """
    text = Text(_TYPE_COMMENT.sub("", source))
    fields = {id(each) for node in ast.walk(text.tree) if isinstance(node, ast.ClassDef) for each in node.body}
    return text.changed(change for node in ast.walk(text.tree) for change in _bare(text, node, id(node) in fields))


def _bare(text: Text, node: ast.AST, is_field: bool) -> Iterator[Change]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
        arrow = text.bytes.rindex(b"->", 0, text.start(node.returns))
        yield len(text.bytes[:arrow].rstrip()), text.end(node.returns), ""
    elif isinstance(node, ast.arg) and node.annotation is not None:
        default = _EQUALS.match(text.bytes, text.end(node.annotation))
        end = default.end() if default else text.end(node.annotation)
        yield text.start(node) + len(node.arg.encode()), end, "=" if default else ""
    elif isinstance(node, ast.AnnAssign) and is_field:
        kind = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
        name = kind.id if isinstance(kind, ast.Name) and kind.id in _KEPT else "object"
        yield text.start(node.annotation), text.end(node.annotation), name
    elif isinstance(node, ast.AnnAssign) and node.value is None:
        yield (*text.lines(node), "")
    elif isinstance(node, ast.AnnAssign):
        yield text.end(node.target), text.find("=", text.end(node.annotation)), " "
