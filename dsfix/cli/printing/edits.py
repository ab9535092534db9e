"""Edits made in the text of their files, and files as a unified diff."""

from __future__ import annotations

import ast
import difflib
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence

from ...engine import verdict as judge
from ...engine.anchors import Place
from ...engine.source import text_of
from ...patch import Edit


class Unwritable(Exception):
    """One sentence that says why an edit cannot be made in the text of its file."""


def unified_diff(edits: Sequence[Edit]) -> str:
    """The diff of all edited files; edits at the same place keep the given order. Raises Unwritable."""
    diffs = []
    for module in dict.fromkeys(edit.module for edit in edits):
        path, *texts = edited([(edit, edit.code_with_imports) for edit in edits if edit.module == module])
        name, packages = os.path.basename(path), module.split(".")
        folder = packages if name == "__init__.py" else packages[:-1]
        diffs.append(_difference("/".join([*folder, name]), *texts))
    return "".join(diffs)


def _difference(name: str, before: str, after: str) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def edited(edits: Iterable[tuple[Edit, str]]) -> tuple[str, str, str]:
    """The file that all of these edits are in, its text before, and after them with this code. Raises Unwritable
    or ChangeRefused."""
    placed = []
    for edit, code in edits:
        block, places = judge.places(edit)
        placed += [(edit, code, place) for place in places]
    before = text_of(block.path) or ""
    lines = before.splitlines(keepends=True)
    placed.sort(key=_position)
    for edit, code, place in reversed(placed):  # so that earlier positions stay valid
        _splice(lines, edit, code, place)
    return block.path, before, "".join(lines)


def _position(placed: tuple[Edit, str, Place]) -> tuple[int, int]:
    edit, _, place = placed
    if isinstance(place[0], ast.expr):
        return place[0].lineno, place[0].col_offset
    if edit.after is not None:
        return place[-1].end_lineno or 0, sys.maxsize
    return place[0].lineno, -1


def _splice(lines: list[str], edit: Edit, code: str, place: Place) -> None:
    first, last = place[0], place[-1]
    start, end = first.lineno - 1, last.end_lineno or last.lineno
    if isinstance(first, ast.expr):
        head = lines[start].encode()[: first.col_offset]  # columns count bytes
        tail = lines[end - 1].encode()[first.end_col_offset or 0 :]
        lines[start:end] = (head + code.strip().encode() + tail).decode().splitlines(keepends=True)
        return
    indent = lines[start].encode()[: first.col_offset].decode()
    if indent.strip():
        raise Unwritable(f"{edit.target}: line {first.lineno} holds more than the anchor")
    if edit.replace is None:
        start = end = end if edit.after is not None else start
    lines[start:end] = [f"{line}\n" for line in textwrap.indent(code.strip("\n"), indent).split("\n")] if code else []
