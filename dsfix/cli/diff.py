"""`diff [ID...]`: the edits as a unified diff against the installed DeepSpeed."""

from __future__ import annotations

import argparse

from .. import survey
from ..catalogue import registry
from ..outcome import Outcome
from ..patch import Edit
from . import prepare
from .exits import OK, TROUBLE, CommandError
from .printing import output
from .printing.edits import Unwritable, unified_diff

NAME = "diff"
HELP = "print the patches as a unified diff against the installed DeepSpeed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", metavar="ID", nargs="*", help="these patches only (default: all that apply)")


def run(options: argparse.Namespace) -> int:
    prepare.require_deepspeed()
    entries = survey.find_all_entries(options.ids) or list(registry.catalogue().values())
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
                notes.append(f"{entry.id} makes no source edit here: {type(change).__name__} of {change.target}")
    try:
        diff = unified_diff(edits)
    except Unwritable as error:
        raise CommandError(f"{error}: it cannot be shown as a diff") from None
    if options.json:
        output.print_json({"diff": diff, "notes": notes})
    else:
        print(diff, end="")
        for note in notes or ([] if diff else ["no patch applies here"]):
            print(f"# {note}")
    return TROUBLE if any(verdicts[entry.id].outcome.trouble for entry in entries) else OK
