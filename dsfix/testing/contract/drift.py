"""Drifted source text: a file with one anchor, function or piece of evidence changed."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsfix.engine import anchors, source
from dsfix.engine.anchors import Place
from dsfix.outcome import Refused
from dsfix.patch import Edit, Source


class NotPossible(Exception):
    """The text cannot be changed in this way and remain valid Python."""


def anchor_twice(path: Path, edit: Edit) -> str:
    """The file with each statement that has the anchor duplicated."""
    lines = _lines(path)
    for first, last in sorted({_statement(path, edit, place) for place in _places(path, edit)}, reverse=True):
        lines[last:last] = lines[first - 1 : last]
    return _python(lines)


def anchor_gone(path: Path, edit: Edit) -> str:
    return _without(path, _places(path, edit))


def evidence_gone(path: Path, evidence: Source) -> str:
    places: list[Place] = []
    for tree in _trees(path, evidence.qualname):
        places += anchors.occurrences(tree, evidence.code)
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
        function = anchors.inner_function(block.parse(), qualname)
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
            return anchors.locate(edit, anchors.inner_function(block.parse(), edit.qualname))
        except Refused as error:
            refused = error
    raise AssertionError(f"{edit.target} has no such anchor: {refused}")


def _trees(path: Path, qualname: str) -> Iterator[ast.AST]:
    if qualname:
        for block in source.find_blocks(str(path), qualname):
            yield anchors.inner_function(block.parse(), qualname)
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.body = []
    yield tree


def _statement(path: Path, edit: Edit, place: Place) -> tuple[int, int]:
    """The lines of the innermost statement around a place."""
    first, last = place[0], place[-1]
    if isinstance(first, ast.stmt):
        return first.lineno, last.end_lineno or 0
    around = [
        (node.lineno, node.end_lineno or 0)
        for tree in _trees(path, edit.qualname)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= first.lineno and (node.end_lineno or 0) >= first.lineno
    ]
    return max(around, key=lambda lines: (lines[0], -lines[1]))


def _without(path: Path, places: Sequence[Place]) -> str:
    lines = _lines(path)
    for place in sorted(places, key=lambda p: (p[0].lineno, p[0].col_offset), reverse=True):
        first, last = place[0], place[-1]
        start, end = first.lineno - 1, last.end_lineno or last.lineno
        if isinstance(first, ast.expr):
            head = lines[start].encode()[: first.col_offset].decode()
            tail = lines[end - 1].encode()[first.end_col_offset or 0 :].decode()
            lines[start:end] = [f"{head}{'gone' if _is_stored(first) else 'None'}{tail}"]
        else:
            indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
            replacement = "\n".join(_replacement(node) for node in place)
            lines[start:end] = textwrap.indent(replacement, indent).split("\n")
    return _python(lines)


def _is_stored(place: ast.expr) -> bool:
    return isinstance(getattr(place, "ctx", None), (ast.Store, ast.Del))


def _replacement(statement: anchors.Node) -> str:
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
