"""Python without annotations: what is written for upstream needs no import for them, and runs on each Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .text import Change, Text

_TYPE_COMMENT = re.compile(r"[ \t]*# type: ignore(\[[^\]\n]*\])?")
_KEPT = ("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")


def without_annotations(source: str) -> str:
    """The same code without annotations; fields of a class keep the name of a built-in type, or `object`."""
    text = Text(_TYPE_COMMENT.sub("", source))
    fields = {id(each) for node in ast.walk(text.tree) if isinstance(node, ast.ClassDef) for each in node.body}
    changes = [change for node in ast.walk(text.tree) for change in _changes(text, node, id(node) in fields)]
    return text.changed(changes)


def _changes(text: Text, node: ast.AST, is_field: bool) -> Iterator[Change]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from _arguments(text, node.args)
        if node.returns is not None:
            arrow = text.bytes.rindex(b"->", 0, text.start(node.returns))
            yield len(text.bytes[:arrow].rstrip()), text.end(node.returns), ""
    elif isinstance(node, ast.AnnAssign) and is_field:
        kind = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
        name = kind.id if isinstance(kind, ast.Name) and kind.id in _KEPT else "object"
        yield text.start(node.annotation), text.end(node.annotation), name
    elif isinstance(node, ast.AnnAssign):
        if node.value is None:
            yield (*text.lines(node), "")
        else:
            end = text.end(node.target)
            yield end, text.find("=", text.end(node.annotation), text.start(node.value)), " "


def _arguments(text: Text, given: ast.arguments) -> Iterator[Change]:
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [*([None] * (len(positional) - len(given.defaults))), *given.defaults]
    pairs = [*zip(positional, defaults), *zip(given.kwonlyargs, given.kw_defaults)]
    for arg, default in [*pairs, (given.vararg, None), (given.kwarg, None)]:
        if arg is None or arg.annotation is None:
            continue
        start, end = text.start(arg) + len(arg.arg.encode()), text.end(arg.annotation)
        if default is None:
            yield start, end, ""
        else:
            equals = text.find("=", end, text.start(default))
            after = text.bytes[equals + 1 :]
            yield start, equals + 1 + len(after) - len(after.lstrip(b" ")), "="
