"""Drifted source text: a file with one anchor, function or piece of evidence changed."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Union

from dsfix.engine import anchors, source
from dsfix.engine.outcome import Refused
from dsfix.patch import Edit, Source

Place = Union[anchors.Run, ast.expr]


class NotPossible(Exception):
    """The text cannot be changed in this way and remain valid Python."""


def anchor_twice(path: Path, edit: Edit) -> str:
    """The file with each statement that has the anchor duplicated."""
    lines = _lines(path)
    for first, last in sorted({_statement(path, edit, place) for place in _places(path, edit)}, reverse=True):
        lines[last:last] = lines[first - 1 : last]
    return _python(lines)


def anchor_gone(path: Path, edit: Edit) -> str:
    """The file without the anchor."""
    return _without(path, _places(path, edit))


def evidence_gone(path: Path, evidence: Source) -> str:
    """The file without the evidence."""
    places: list[Place] = []
    for tree in _trees(path, evidence.qualname):
        expression = anchors.as_expression(evidence.code)
        found = anchors.expressions(tree, expression) if expression is not None else anchors.runs(tree, evidence.code)
        places += found
    if not places:
        raise NotPossible("the evidence is missing")
    return _without(path, places)


def function_renamed(path: Path, qualname: str, keep_name: bool) -> str:
    """The file with the function renamed; `keep_name` adds an alias for modules that import it."""
    lines = _lines(path)
    blocks = source.find_blocks(str(path), qualname)
    if not blocks:
        raise NotPossible("it is not a function")
    for block in reversed(blocks):
        function = anchors.inner_function(block.parse(), source.split_target(qualname)[1])
        line = lines[function.lineno - 1]
        new = re.sub(rf"\bdef(\s+){function.name}\b", rf"def\1{function.name}_renamed", line, count=1)
        if new == line:
            raise NotPossible("its definition is not on one line")
        lines[function.lineno - 1] = new
        if keep_name:
            indent = line[: len(line) - len(line.lstrip())]
            lines.insert(function.end_lineno or 0, f"{indent}{function.name} = {function.name}_renamed")
    return _python(lines)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")


def _python(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    try:
        compile(text, "changed", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise NotPossible(f"line {error.lineno}: {error.msg}") from None
    return text


def _places(path: Path, edit: Edit) -> Sequence[Place]:
    refused: Refused | None = None
    for block in source.find_blocks(str(path), edit.qualname):
        try:
            return anchors.locate(edit, anchors.inner_function(block.parse(), anchors.edit_path(edit)))
        except Refused as error:
            refused = error
    raise AssertionError(f"{edit.target} has no such anchor: {refused}")


def _trees(path: Path, qualname: str) -> Iterator[ast.AST]:
    if qualname:
        for block in source.find_blocks(str(path), qualname):
            yield anchors.inner_function(block.parse(), source.split_target(qualname)[1])
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.body = []
    yield tree


def _statement(path: Path, edit: Edit, place: Place) -> tuple[int, int]:
    """The lines of the innermost statement around a place."""
    if isinstance(place, anchors.Run):
        return place.nodes[0].lineno, place.nodes[-1].end_lineno or 0
    around = [
        (node.lineno, node.end_lineno or 0)
        for tree in _trees(path, edit.qualname)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= place.lineno and (node.end_lineno or 0) >= place.lineno
    ]
    return max(around, key=lambda lines: (lines[0], -lines[1]))


def _without(path: Path, places: Sequence[Place]) -> str:
    lines = _lines(path)
    for place in sorted(places, key=lambda p: (_start(p).lineno, _start(p).col_offset), reverse=True):
        if isinstance(place, anchors.Run):
            first, last = place.nodes[0].lineno, place.nodes[-1].end_lineno or 0
            indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
            replacement = "\n".join(_replacement(node) for node in place.nodes)
            lines[first - 1 : last] = textwrap.indent(replacement, indent).split("\n")
        else:
            start, end = place.lineno - 1, place.end_lineno or place.lineno
            head = lines[start].encode()[: place.col_offset].decode()
            tail = lines[end - 1].encode()[place.end_col_offset or 0 :].decode()
            lines[start:end] = [f"{head}{'gone' if _is_stored(place) else 'None'}{tail}"]
    return _python(lines)


def _start(place: Place) -> ast.stmt | ast.expr:
    return place.nodes[0] if isinstance(place, anchors.Run) else place


def _is_stored(place: ast.expr) -> bool:
    return isinstance(getattr(place, "ctx", None), (ast.Store, ast.Del))


def _replacement(statement: ast.stmt) -> str:
    """A statement that sets the same names to None, or to 0 if they are None, so that they can still be imported."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        names = [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names = [statement.name]
    else:
        stored = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        names = [node.id for node in stored]
    text = " = ".join([*dict.fromkeys(names), "None"]) if names else "pass"
    return text if text != ast.unparse(statement) else text.replace("None", "0")
