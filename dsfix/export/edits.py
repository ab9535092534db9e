"""Edits made in the text of their files, and files as a unified diff."""

from __future__ import annotations

import ast
import difflib
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..engine import verdict as judge
from ..engine.anchors import Place
from ..engine.source import FunctionSource, text_of
from ..patch import Edit
from .text import Inexportable, Text


@dataclass(frozen=True)
class Located:
    """An edit, the places where it goes, and the code that is written there."""

    edit: Edit
    block: FunctionSource
    places: Sequence[Place]
    code: str

    @property
    def file(self) -> str:
        """The file's name from the directory that holds the package on."""
        name, modules = os.path.basename(self.block.path), self.edit.module.split(".")
        return "/".join([*(modules if name == "__init__.py" else modules[:-1]), name])


def located(edit: Edit, code: str | None = None) -> Located:
    """Where the installed source has it. Raises Refused where it has not."""
    block, places = judge.places(edit)
    return Located(edit, block, places, edit.written if code is None else code)


def unified_diff(edits: Sequence[Edit]) -> str:
    """The diff of all edited files; edits at the same place keep the given order.

    Raises:
        Inexportable: an anchor shares its line with other statements.
    """
    several = [located(each) for each in edits]
    files = dict.fromkeys(each.file for each in several)
    changed = {name: edited([each for each in several if each.file == name]) for name in files}
    return "".join(difference(name, *texts) for name, texts in changed.items())


def difference(name: str, before: str | None, after: str) -> str:
    """The unified diff of one file; before: None where it is new."""
    old, new = (before or "").splitlines(keepends=True), after.splitlines(keepends=True)
    origin = "/dev/null" if before is None else f"a/{name}"
    lines = difflib.unified_diff(old, new, origin, f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def edited(several: Iterable[Located]) -> tuple[str, str]:
    """The text of the file that all of these edits are in, before and after them."""
    several = list(several)
    before = text_of(several[0].block.path) or ""
    lines = before.splitlines(keepends=True)
    in_order = sorted([(each, place) for each in several for place in each.places], key=_position)
    for each, place in reversed(in_order):  # from the end, so that earlier positions stay valid
        _splice(lines, each, place)
    return before, "".join(lines)


def _position(pair: tuple[Located, Place]) -> tuple[int, int]:
    each, place = pair
    if isinstance(place[0], ast.expr):
        return place[0].lineno, place[0].col_offset
    if each.edit.after is not None:
        return place[-1].end_lineno or 0, sys.maxsize
    return place[0].lineno, -1


def _splice(lines: list[str], each: Located, place: Place) -> None:
    """Makes one edit at one place in the lines of the file."""
    first, last = place[0], place[-1]
    start, end = first.lineno - 1, last.end_lineno or last.lineno
    if isinstance(first, ast.expr):
        head = lines[start].encode()[: first.col_offset]  # columns count bytes
        tail = lines[end - 1].encode()[first.end_col_offset or 0 :]
        lines[start:end] = (head + each.code.strip().encode() + tail).decode().splitlines(keepends=True)
        return
    indent = lines[start].encode()[: first.col_offset].decode()
    if indent.strip():
        raise Inexportable(f"{each.edit.target}: line {first.lineno} holds more than the anchor")
    code = each.code
    if each.edit.replace is None:
        start = end = end if each.edit.after is not None else start
    else:
        code, start, end = _without_what_stays(code, place, start, end)
    lines[start:end] = [f"{line}\n" for line in textwrap.indent(code.strip("\n"), indent).split("\n")] if code else []


def _without_what_stays(code: str, place: Place, start: int, end: int) -> tuple[str, int, int]:
    """The statements of the anchor that the code begins and ends with keep the file's own text."""
    text = Text(textwrap.dedent(code).strip("\n"))
    new, old = list(text.tree.body), list(place)
    while len(old) > 1 and new and ast.dump(new[0]) == ast.dump(old[0]):
        new.pop(0)
        start = old.pop(0).end_lineno or start
    while len(old) > 1 and new and ast.dump(new[-1]) == ast.dump(old[-1]):
        new.pop()
        end = old.pop().lineno - 1
    if not new:
        return "", start, end
    first, last = text.lines(new[0])[0], text.lines(new[-1])[1]
    return text.between(first, last), start, end
