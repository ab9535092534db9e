"""`diff [ID...]`: the edits as a unified diff against the installed DeepSpeed, or as a pull request for it."""

from __future__ import annotations

import argparse
import sys

from .. import survey
from ..catalogue import registry
from ..catalogue.registry import Entry
from ..export.edits import unified_diff
from ..export.pull_request import pull_request
from ..export.text import Inexportable
from ..outcome import Outcome
from ..patch import Edit
from . import prepare
from .exits import OK, TROUBLE, Complaint
from .printing import output

NAME = "diff"
HELP = "the patches as a unified diff against the installed DeepSpeed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", metavar="ID", nargs="*", help="these patches only (default: all that apply)")
    command.add_argument(
        "--upstream",
        action="store_true",
        help="one patch as a change of DeepSpeed's repository, for `git apply`: the fix without dsfix, and a unit test "
        "made from its reproduction; in the top directory of a clone it is for the clone",
    )


def run(options: argparse.Namespace) -> int:
    prepare.require_deepspeed()
    named = survey.named(options.ids)
    if options.upstream:
        if len(named) != 1:
            raise Complaint("--upstream takes one ID: a pull request fixes one bug")
        return _upstream(named[0], options.json)
    entries = named or list(registry.catalogue().values())
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
    try:
        diff = unified_diff(edits)
    except Inexportable as error:
        raise Complaint(f"{error}: it cannot be shown as a diff") from None
    if options.json:
        output.print_json({"diff": diff, "notes": notes})
    else:
        print(diff, end="")
        for note in notes or ([] if diff else ["no patch applies here"]):
            print(f"# {note}")
    return TROUBLE if any(verdicts[entry.id].outcome.trouble for entry in entries) else OK


def _upstream(entry: Entry, as_json: bool) -> int:
    """The diff goes to standard output alone, so that it can be piped into `git apply`."""
    verdict = survey.if_asked_for(entry)
    if verdict.outcome is not Outcome.PENDING:
        diff, test, notes = "", "", [f"{entry.id} does not apply here: {verdict.outcome.value}: {verdict.reason}"]
    else:
        made = pull_request(entry)
        diff, test, notes = made.diff, made.test, [*made.notes]
    if as_json:
        output.print_json({"diff": diff, "test": test, "notes": notes})
    else:
        print(diff, end="")
        for note in notes:
            print(f"dsfix: {note}", file=sys.stderr)
    return OK if diff else TROUBLE
