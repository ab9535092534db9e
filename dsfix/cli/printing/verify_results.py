"""The results of `verify`: the state of each patch, a row of the table, JSON."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from typing import TYPE_CHECKING, Any

from ... import survey
from ...catalogue import registry
from ...engine.verdict import Verdict
from ...outcome import BUG_ABSENT, Outcome
from . import output

if TYPE_CHECKING:
    from ...lab.reproduction import Sighting

_NOT_APPLIED = (*BUG_ABSENT, Outcome.UNPROVEN)
_NO_ANSWER = ("error", "timeout")
_TAIL_LINES = 5


class State(enum.Enum):
    """The result for one patch."""

    FIXED = "fixed"  # the bug is seen without the patch and not with it
    NOT_FIXED = "not fixed"  # the bug is seen with the patch
    NOT_SEEN = "not seen"  # the patch applies, but the bug is not seen without it either
    NO_BUG = "no bug"  # the patch does not apply, and the bug is not seen
    BUG = "bug"  # the patch does not apply, and the bug is seen
    CANNOT_TELL = "cannot tell"
    NO_ANSWER = "no answer"  # an error, or the time limit
    UNFINISHED = "unfinished"  # interrupted before the run with the patch
    DISABLED = "disabled"
    IN_TROUBLE = "in trouble"

    @property
    def wrong(self) -> bool:
        return self in (State.NOT_FIXED, State.BUG, State.NO_ANSWER, State.IN_TROUBLE)


@dataclasses.dataclass(frozen=True)
class VerifiedPatch:
    """One patch: its verdict, and the runs without it and with it; None for a run that was not made."""

    entry: registry.Entry
    verdict: Verdict
    without: Sighting | None = None
    patched: Sighting | None = None

    @property
    def state(self) -> State:
        outcome, seen = self.verdict.outcome, [run.outcome for run in (self.without, self.patched) if run]
        if outcome is Outcome.DISABLED:
            return State.DISABLED
        if outcome.trouble:
            return State.IN_TROUBLE
        if self.patched is not None and self.patched.outcome == "bug":
            return State.NOT_FIXED
        if outcome in _NOT_APPLIED and "bug" in seen:
            return State.BUG
        if any(each in _NO_ANSWER for each in seen):
            return State.NO_ANSWER
        if "cannot-tell" in seen:
            return State.CANNOT_TELL
        if outcome in _NOT_APPLIED:
            return State.NO_BUG
        if self.patched is None:
            return State.UNFINISHED
        if "bug" not in seen:
            return State.NOT_SEEN
        # if the patch was not applied, something else removed the bug: nothing is proven
        return State.FIXED if self.patched.in_force else State.NO_ANSWER

    @property
    def word(self) -> str:
        return self.verdict.outcome.value if self.state is State.IN_TROUBLE else self.state.value

    @property
    def runs(self) -> list[tuple[str, Sighting]]:
        return [(name, run) for name, run in (("without", self.without), ("with", self.patched)) if run]


def as_json(rows: list[VerifiedPatch], not_run: list[Outcome], interrupted: bool) -> dict[str, Any]:
    return {
        "distributions": survey.distributions(),
        "interrupted": interrupted,
        "left_out": {outcome.value: not_run.count(outcome) for outcome in BUG_ABSENT},
        "patches": [
            {
                "id": row.entry.id,
                "title": row.entry.patch.title,
                "severity": row.entry.patch.severity.value,
                "outcome": row.verdict.outcome.value,
                "reason": row.verdict.reason,
                "state": row.state.value,
                "without": dataclasses.asdict(row.without) if row.without else None,
                "with": dataclasses.asdict(row.patched) if row.patched else None,
            }
            for row in rows
        ],
    }


def print_results(rows: list[VerifiedPatch], not_run: list[Outcome], planned: int | None) -> None:
    """`planned`: the number of patches to run if the command was interrupted, else None."""
    print(survey.versions_line())
    if rows:
        output.print_table(("patch", "here", "result"), [(row.entry.id, row.word, _seen(row)) for row in rows])
    for row in rows:
        for name, sighting in row.runs:
            lines = sighting.detail.splitlines()[1:]
            if sighting.outcome in _NO_ANSWER and lines:
                print(f"{row.entry.id} {name} the patch, last lines:")
                print("\n".join(f"    {output.printable(line)}" for line in lines[-_TAIL_LINES:]) + "\n")
    print("\n".join(_advice(rows, not_run, planned)))


def _seen(row: VerifiedPatch) -> str:
    if not row.runs:
        return row.verdict.reason
    lines = [] if row.verdict.outcome is Outcome.PENDING else [row.verdict.reason]
    if row.state is State.CANNOT_TELL:
        lines += [next(_first_line(run) for _, run in row.runs if run.outcome == "cannot-tell")]
    else:
        lines += [f"{name}: {_what(name, run)}" for name, run in row.runs]
    devices = dict.fromkeys(run.device for _, run in row.runs if run.device)
    seconds = " + ".join(f"{run.seconds:.1f}" for _, run in row.runs)
    return "\n".join([*lines, ", ".join([*devices, f"{seconds} s"])])


def _what(name: str, run: Sighting) -> str:
    unexpected = name == "with" and run.patch and not run.in_force
    return _first_line(run) + (f" (patch outcome: {run.patch})" if unexpected else "")


def _first_line(run: Sighting) -> str:
    return output.printable((run.detail.splitlines() or [run.outcome])[0])


def _advice(rows: list[VerifiedPatch], not_run: list[Outcome], planned: int | None) -> list[str]:
    lines = []
    if planned is not None:
        done = sum(row.state is not State.UNFINISHED for row in rows)
        lines.append(f"Interrupted: {done} of {planned} patches done.")
    if rows:
        counts = Counter(row.state.value for row in rows)
        lines.append(", ".join(f"{count} {state}" for state, count in counts.items()) + ".")
    if not_run:
        lines.append(f"Not applicable here, so not run: {len(not_run)}; `python -m dsfix list --verbose` shows why.")
    states = {row.state for row in rows}
    if State.IN_TROUBLE in states:
        lines.append("`python -m dsfix show ID` explains a patch in trouble.")
    if State.NO_ANSWER in states and any(row.verdict.outcome is Outcome.DISABLED for row in rows):
        lines.append("DSFIX_ONLY and DSFIX_SKIP also disable patches in the runs of the others.")
    if states & {State.NOT_FIXED, State.BUG, State.NO_ANSWER}:
        lines.append("`python -m dsfix verify ID --json` prints all details; attach them to a bug report.")
    elif State.FIXED in states:
        lines.append("Put `import dsfix` on the first line of the script.")
    return lines
