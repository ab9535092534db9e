"""What `verify` says of each patch: its state, a row of the table, JSON."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from typing import TYPE_CHECKING, Any

from ...engine import registry, survey
from ...engine.outcome import STAYS_OUT, Outcome
from ...engine.verdict import Verdict
from . import output

if TYPE_CHECKING:
    from ...lab.reproduction import Sighting

_NO_ANSWER = ("error", "timeout")
_TAIL_LINES = 5


class State(enum.Enum):
    """What became of one patch."""

    CURED = "cured"  # the bug without the patch, none with it
    NOT_CURED = "not cured"  # the bug with the patch
    NOT_SEEN = "not seen"  # the patch applies, but no bug was seen without it either
    NO_BUG = "no bug"  # the patch does not apply, and no bug was seen
    BUG = "bug"  # the patch does not apply, and the bug was seen
    CANNOT_TELL = "cannot tell"
    NO_ANSWER = "no answer"  # an error, or the time limit
    UNFINISHED = "unfinished"  # interrupted before the run with the patch
    DISABLED = "disabled"
    IN_TROUBLE = "in trouble"

    @property
    def wrong(self) -> bool:
        return self in (State.NOT_CURED, State.BUG, State.NO_ANSWER, State.IN_TROUBLE)

    @property
    def style(self) -> str:
        return {State.CURED: "green", State.NO_BUG: "cyan"}.get(self, "red" if self.wrong else "yellow")


@dataclasses.dataclass(frozen=True)
class Row:
    """One patch: the verdict by its source, and what was seen without it and with it, None where that was not run."""

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
            return State.NOT_CURED
        if outcome in STAYS_OUT and "bug" in seen:
            return State.BUG
        if any(each in _NO_ANSWER for each in seen):
            return State.NO_ANSWER
        if "cannot-tell" in seen:
            return State.CANNOT_TELL
        if outcome in STAYS_OUT:
            return State.NO_BUG
        if self.patched is None:
            return State.UNFINISHED
        if "bug" not in seen:
            return State.NOT_SEEN
        # gone, but not by this patch: nothing is proven
        return State.CURED if self.patched.patch == "applied" else State.NO_ANSWER

    @property
    def word(self) -> str:
        return self.verdict.outcome.value if self.state is State.IN_TROUBLE else self.state.value

    @property
    def runs(self) -> list[tuple[str, Sighting]]:
        """What was run, each with its name."""
        return [(name, run) for name, run in (("without", self.without), ("with", self.patched)) if run]


def as_json(rows: list[Row], apart: list[Outcome], interrupted: bool) -> dict[str, Any]:
    return {
        "distributions": survey.distributions(),
        "interrupted": interrupted,
        "left_out": {outcome.value: apart.count(outcome) for outcome in STAYS_OUT},
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


def print_rows(rows: list[Row], apart: list[Outcome], wanted: int | None) -> None:
    """`wanted`: how many patches there were to run, where that was interrupted."""
    print(survey.heading())
    if rows:
        output.print_table(
            ("patch", "here", "what was seen"),
            [((row.entry.id, row.word, _seen(row)), row.state.style) for row in rows],
        )
    for row in rows:
        for name, sighting in row.runs:
            lines = sighting.detail.splitlines()[1:]
            if sighting.outcome in _NO_ANSWER and lines:
                print(f"{row.entry.id} {name} the patch, last lines:")
                print("\n".join(f"    {output.printable(line)}" for line in lines[-_TAIL_LINES:]) + "\n")
    print("\n".join(_advice(rows, apart, wanted)))


def _seen(row: Row) -> str:
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
    unexpected = name == "with" and run.patch not in ("", "applied")
    return _first_line(run) + (f" (the patch is {run.patch} there)" if unexpected else "")


def _first_line(run: Sighting) -> str:
    return output.printable((run.detail.splitlines() or [run.outcome])[0])


def _advice(rows: list[Row], apart: list[Outcome], wanted: int | None) -> list[str]:
    lines = []
    if wanted is not None:
        done = sum(row.state is not State.UNFINISHED for row in rows)
        lines.append(f"Interrupted: {done} of {wanted} patches were done.")
    if rows:
        counts = Counter(row.state.value for row in rows)
        lines.append(", ".join(f"{count} {state}" for state, count in counts.items()) + ".")
    if apart:
        lines.append(f"Left out, as they do not apply here: {len(apart)}; `python -m dsfix list` says why.")
    states = {row.state for row in rows}
    if State.IN_TROUBLE in states:
        lines.append("`python -m dsfix show ID` tells the story of a patch in trouble.")
    if State.NO_ANSWER in states and any(row.verdict.outcome is Outcome.DISABLED for row in rows):
        lines.append("Patches that DSFIX_ONLY or DSFIX_SKIP leave out are missing in the runs of the others, too.")
    if states & {State.NOT_CURED, State.BUG, State.NO_ANSWER}:
        lines.append("`python -m dsfix verify ID --json` prints all that was seen: put it into a report.")
    elif State.CURED in states:
        lines.append("Put `import dsfix` on the first line of the script.")
    return lines
