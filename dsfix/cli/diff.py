"""`diff [ID...]`: the edits as a unified diff against the installed DeepSpeed."""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import sys
import textwrap

from .. import survey
from ..catalogue import registry
from ..engine import verdict as judge
from ..engine.anchors import Place
from ..engine.source import text_of
from ..outcome import Outcome
from ..patch import Edit
from . import prepare
from .exits import OK, TROUBLE, Complaint
from .printing import output

NAME = "diff"
HELP = "the patches as a unified diff against the installed DeepSpeed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", metavar="ID", nargs="*", help="these patches only (default: all that apply)")


def run(options: argparse.Namespace) -> int:
    prepare.require_deepspeed()
    entries = [survey.entry(patch_id) for patch_id in dict.fromkeys(options.ids)] or list(registry.catalogue().values())
    verdicts = survey.verdicts()
    edits, notes = [], []
    for entry in sorted(entries, key=lambda entry: entry.id):
        verdict = verdicts[entry.id]
        if verdict.outcome is not Outcome.PENDING:
            if options.ids or verdict.outcome.trouble:
                notes.append(f"{entry.id} does not apply here: {verdict.outcome.value}: {verdict.reason}")
            continue
        for change in entry.patch.changes:
            if isinstance(change, Edit):
                edits.append(change)
            else:
                notes.append(f"{entry.id} does not change source: {type(change).__name__} of {change.target}")
    diff = unified_diff(edits)
    if options.json:
        output.print_json({"diff": diff, "notes": notes})
    else:
        print(diff, end="")
        for note in notes or ([] if diff else ["no patch applies here"]):
            print(f"# {note}")
    return TROUBLE if any(verdicts[entry.id].outcome.trouble for entry in entries) else OK


def unified_diff(edits: list[Edit]) -> str:
    """The diff of all edited files, paths relative to the directory that holds the package.

    Edits at the same place keep the given order; the engine orders them by patch id.

    Raises:
        Complaint: an anchor shares its line with other statements.
    """
    places: dict[str, list[tuple[Edit, Place]]] = {}
    names = {}
    for edit in edits:
        block, found = judge.places(edit)
        file, modules = os.path.basename(block.path), edit.module.split(".")
        names[block.path] = "/".join([*(modules if file == "__init__.py" else modules[:-1]), file])
        places.setdefault(block.path, []).extend((edit, place) for place in found)
    parts: list[str] = []
    for path, several in places.items():
        before = (text_of(path) or "").splitlines(keepends=True)
        after = list(before)
        in_order = sorted(several, key=_position)
        for edit, place in reversed(in_order):  # from the end, so that earlier positions stay valid
            _splice(after, edit, place)
        parts += difflib.unified_diff(before, after, f"a/{names[path]}", f"b/{names[path]}")
    return "".join(line if line.endswith("\n") else line + "\n" for line in parts)


def _position(change: tuple[Edit, Place]) -> tuple[int, int]:
    edit, place = change
    if isinstance(place[0], ast.expr):
        return place[0].lineno, place[0].col_offset
    if edit.after is not None:
        return place[-1].end_lineno or 0, sys.maxsize
    return place[0].lineno, -1


def _splice(lines: list[str], edit: Edit, place: Place) -> None:
    """Applies one edit to the lines of the file."""
    first, last = place[0], place[-1]
    start, end = first.lineno - 1, last.end_lineno or last.lineno
    if isinstance(first, ast.expr):
        head = lines[start].encode()[: first.col_offset]  # columns count bytes
        tail = lines[end - 1].encode()[first.end_col_offset or 0 :]
        lines[start:end] = (head + edit.written.strip().encode() + tail).decode().splitlines(keepends=True)
        return
    indent = lines[start].encode()[: first.col_offset].decode()
    if indent.strip():
        raise Complaint(f"{edit.target}: line {first.lineno} holds more than the anchor: it cannot be shown as a diff")
    code = [f"{line}\n" for line in textwrap.indent(edit.written.strip("\n"), indent).split("\n")]
    if edit.replace is None:
        start = end = end if edit.after is not None else start
    lines[start:end] = code
