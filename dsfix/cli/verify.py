"""`verify [ID...]`: runs the reproductions on this machine, without each patch and with it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import survey
from ..catalogue import registry
from ..engine.verdict import Verdict
from ..outcome import BUG_ABSENT, Outcome
from . import prepare
from .exits import INTERRUPTED, NO_ANSWER, OK, TROUBLE, CommandError
from .printing import output
from .printing.verify_results import State, VerifiedPatch, as_json, print_results

if TYPE_CHECKING:
    from ..lab.reproduction import Sighting

NAME = "verify"
HELP = "run each bug's reproduction on this machine, without the patch and with it"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Run each bug's reproduction on this machine: the bug must occur without the patch and not with it. "
        "Without ids: every patch that applies to the installed DeepSpeed. Reproductions run one at a time in their "
        "own processes, single-threaded, at the lowest priority, in a scratch directory; all other patches are applied."
    )
    command.epilog = (
        "exit status: 0 every bug that should be fixed is fixed; 1 a patch is in trouble or does not fix its bug, a "
        "run gave no answer, or a bug was seen where its patch does not apply; 2 bad usage; 3 no DeepSpeed; 4 nothing "
        "is wrong, but not everything could be tested here; 130 interrupted; the results so far are printed"
    )
    command.add_argument("ids", metavar="ID", nargs="*", help="only these patches, even if they do not apply")
    command.add_argument(
        "--timeout",
        type=prepare.number(1, 86400),
        default=300,
        metavar="SECONDS",
        help="time limit of each run (default: 300)",
    )


def run(options: argparse.Namespace) -> int:
    named = survey.find_all_entries(options.ids)
    try:
        prepare.require_deepspeed()
        prepare.require_temporary_directory()
        prepare.require_same_packages(NAME)
    except CommandError as complaint:
        return prepare.report_refusal(complaint, options.json)
    verdicts = _verdicts(named)
    catalogue = registry.catalogue().values()
    entries = named or [entry for entry in catalogue if verdicts[entry.id].outcome not in BUG_ABSENT]
    rows: list[VerifiedPatch] = []
    interrupted = False
    prepare.lower_priority()
    try:
        _collect(entries, verdicts, bool(named), options.timeout, rows)
    except KeyboardInterrupt:
        interrupted = True
    not_run = [verdict.outcome for verdict in verdicts.values() if not named and verdict.outcome in BUG_ABSENT]
    options.status = status = INTERRUPTED if interrupted else _status(row.state for row in rows)
    if options.json:
        output.print_json(as_json(rows, not_run, interrupted))
    else:
        print_results(rows, not_run, len(entries) if interrupted else None)
    return status


def _verdicts(named: Iterable[registry.Entry]) -> dict[str, Verdict]:
    """The verdicts of `list`; a patch that is off by default counts as on if it is named."""
    verdicts = survey.verdicts()
    for entry in named:
        verdicts[entry.id] = survey.verdict_if_named(entry)
    return verdicts


def _collect(
    entries: list[registry.Entry], verdicts: dict[str, Verdict], named: bool, timeout: float, rows: list[VerifiedPatch]
) -> None:
    """Runs the reproductions and appends to `rows` after each run, so that an interrupt keeps the results so far."""
    plan = []
    for entry in entries:
        outcome = verdicts[entry.id].outcome
        runs = 2 if outcome is Outcome.PENDING else int(named and outcome is not Outcome.DISABLED)
        plan.append((VerifiedPatch(entry, verdicts[entry.id]), runs))
    total = sum(runs for _, runs in plan)
    if total > 1 and sys.stderr is not None:
        print(
            f"dsfix: {total} runs; a time estimate follows the first one. Ctrl-C prints the results so far",
            file=sys.stderr,
        )
    shown = output.Progress(total, alike=True)
    for row, runs in plan:
        if not runs:
            rows.append(row)
            continue
        shown.start(f"{row.entry.id} without the patch")
        without = _reproduce(row.entry.id, False, timeout)
        skipped = runs == 2 and without.outcome == "cannot-tell"
        shown.done(_in_short(without), 2 if skipped else 1)
        rows.append(dataclasses.replace(row, without=without))
        if runs == 2 and not skipped:
            shown.start(f"{row.entry.id} with the patch")
            patched = _reproduce(row.entry.id, True, timeout)
            rows[-1] = dataclasses.replace(rows[-1], patched=patched)
            shown.done(_in_short(patched))


def _reproduce(patch_id: str, patched: bool, timeout: float) -> Sighting:
    from ..lab import reproduction

    try:
        return reproduction.run(patch_id, patched, timeout)
    except OSError as error:  # from the scratch directory: an error inside the reproduction is an outcome
        return reproduction.Sighting("cannot-tell", f"{tempfile.gettempdir()}: {error.strerror or error}", 0.0)


def _in_short(sighting: Sighting) -> str:
    return f"{sighting.outcome}, {sighting.seconds:.1f} s"


def _status(found: Iterable[State]) -> int:
    states = set(found)
    if any(state.wrong for state in states):
        return TROUBLE
    return NO_ANSWER if states & {State.CANNOT_TELL, State.NOT_SEEN} else OK
