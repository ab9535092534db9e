"""`diff [ID…]`: what the edits amount to, as a unified diff against the installed DeepSpeed."""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import textwrap
from typing import Callable

from .. import judge, registry
from ..outcome import Outcome
from ..patch import Edit
from ..source import text_of
from ..syntax import Place, Run
from . import environment, output
from .status import OK

NAME = "diff"
HELP = "the unified diff that the patches amount to against the installed DeepSpeed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", metavar="ID", nargs="*", help="these patches only (default: all that apply)")


def run(options: argparse.Namespace) -> int:
    environment.require_deepspeed()
    named = [environment.entry(patch_id) for patch_id in options.ids]
    verdicts = environment.verdicts()
    notes = []
    for entry in named:
        if verdicts[entry.id].outcome is not Outcome.PENDING:
            notes.append(
                f"{entry.id} does not apply here: {verdicts[entry.id].outcome.value}: {verdicts[entry.id].reason}"
            )
    entries = [e for e in named or registry.catalogue().values() if verdicts[e.id].outcome is Outcome.PENDING]
    edits = [change for entry in entries for change in entry.patch.changes if isinstance(change, Edit)]
    for entry in entries:
        for change in entry.patch.changes:
            if not isinstance(change, Edit):
                notes.append(f"{entry.id} changes no source: {type(change).__name__} of {change.target}")
    diff = unified_diff(edits)
    if options.json:
        output.print_json({"patches": [entry.id for entry in entries], "diff": diff, "notes": notes})
        return OK
    print(diff, end="")
    for note in notes or ([] if diff else ["no patch applies here"]):
        print(f"# {note}")
    return OK


_Splice = tuple[int, int, Callable[[list[str]], list[str]]]  # from line, to line, what becomes of them


def unified_diff(edits: list[Edit]) -> str:
    """The diff of all edited files, paths relative to the directory that holds the package."""
    splices: dict[str, list[_Splice]] = {}
    names = {}
    for edit in edits:
        block, _, places = judge.places(edit)
        module = edit.target.partition(":")[0]
        names[block.path] = "/".join([*module.split(".")[:-1], os.path.basename(block.path)])
        for place in places:
            splices.setdefault(block.path, []).append(_splice(edit, place))
    parts: list[str] = []
    for path, several in splices.items():
        before = (text_of(path) or "").splitlines(keepends=True)
        after = list(before)
        for start, end, lines in sorted(several, reverse=True, key=lambda splice: splice[:2]):
            after[start:end] = lines(after[start:end])
        parts += difflib.unified_diff(before, after, f"a/{names[path]}", f"b/{names[path]}")
    return "".join(line if line.endswith("\n") else line + "\n" for line in parts)


def _splice(edit: Edit, place: Place) -> _Splice:
    if not isinstance(place, Run):
        return (
            place.lineno - 1,
            place.end_lineno or place.lineno,
            lambda lines: _with_expression(lines, edit.code, place),
        )
    first, last = place.nodes[0], place.nodes[-1]
    start, end = first.lineno - 1, last.end_lineno or last.lineno
    code = textwrap.indent(textwrap.dedent(edit.code).strip("\n"), " " * first.col_offset).splitlines(keepends=True)
    code[-1] += "\n"
    if edit.after is not None:
        return end, end, lambda lines: code
    return start, end if edit.replace is not None else start, lambda lines: code


def _with_expression(lines: list[str], code: str, place: ast.expr) -> list[str]:
    # columns count bytes
    head = lines[0].encode()[: place.col_offset]
    tail = lines[-1].encode()[place.end_col_offset or 0 :]
    return (head + code.strip().encode() + tail).decode().splitlines(keepends=True)
