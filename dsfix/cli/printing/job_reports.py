"""`list --job DIR`: the report files of a job's processes, merged into one table."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...outcome import BUG_ABSENT, Outcome, shortened_list
from ..exits import OK, TROUBLE, CommandError
from . import output

_NAMED = 5  # processes, or files
_LARGEST = 16_000_000  # bytes of a report: a hundred times the usual size
_EFFECT = "took effect"
_LISTED = (Outcome.APPLIED, Outcome.PENDING)


class ReportingProcess(NamedTuple):
    """The process that wrote a report."""

    host: str
    rank: int
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"


@dataclass
class Group:
    """The processes that report the same, and the reasons that they give.

    reached: what an applied patch reported -> the ranks; effects: (step, phrase) of those on which it took effect.
    """

    processes: list[ReportingProcess] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    reached: dict[str, set[int]] = field(default_factory=dict)
    effects: list[tuple[int, str]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return len({process.rank for process in self.processes})

    @property
    def reason(self) -> str:
        """The most frequent one, and the number of others."""
        reason, *others = (reason for reason, _ in self.reasons.most_common())
        return f"{reason} (and {_count(len(others), 'other reason')})" if others else reason

    @property
    def effect_summary(self) -> str:
        """What the patch did on these ranks, in one line; "" if it does not report."""
        if not self.effects:
            return next((state for state in ("ran", "not reached") if state in self.reached), "")
        step, what = min(self.effects)
        when = f", first in step {step}" if step else ""
        return f"took effect on {_count(len(self.reached[_EFFECT]), 'rank')}{when}: {what}"

    @property
    def named(self) -> str:
        return shortened_list(map(str, sorted(self.processes, key=lambda process: (process.rank, process))), _NAMED)


@dataclass
class MergedReports:
    """The merged reports: by versions, and by patch and outcome."""

    versions: dict[str, Group] = field(default_factory=dict)
    patches: dict[str, dict[Outcome, Group]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def processes(self) -> list[ReportingProcess]:
        return [process for group in self.versions.values() for process in group.processes]

    def add(self, report: Any) -> None:
        """Adds one report. Raises KeyError, TypeError or ValueError, and adds nothing, if dsfix did not write it."""
        host, rank, pid = report["host"], report["rank"], report["pid"]
        process = ReportingProcess(_expect(str, host), _expect(int, rank), _expect(int, pid))
        versions = {"dsfix": report["dsfix"], **report["distributions"]}
        patches = [
            (_expect(str, each["id"]), Outcome(each["outcome"]), _reason(each), each.get("reached", ""), _effect(each))
            for each in report["patches"]
        ]
        installed = [(name, _expect(str, version)) for name, version in versions.items() if version is not None]
        text = ", ".join(f"{name} {version or '?'}" for name, version in installed)
        self.versions.setdefault(text, Group()).processes.append(process)
        for patch_id, outcome, reason, reached, effect in patches:
            group = self.patches.setdefault(patch_id, {}).setdefault(outcome, Group())
            group.processes.append(process)
            group.reasons[reason] += 1
            if reached:
                group.reached.setdefault(reached, set()).add(process.rank)
            group.effects += effect


def run(directory: Path, everything: bool, as_json: bool) -> int:
    """Prints the state of each patch and on how many ranks, and returns the exit status.

    everything: list also the patches that have no effect on any rank. Raises CommandError if there are no reports.
    """
    job = _read(directory)
    if as_json:
        output.print_json(_as_json(job))
    else:
        _print(job, everything)
    return TROUBLE if any(outcome.trouble for states in job.patches.values() for outcome in states) else OK


def _read(directory: Path) -> MergedReports:
    job = MergedReports()
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise CommandError(f"{directory} cannot be read: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith("."):  # still being written
            continue
        try:
            if not (entry.name.startswith("dsfix-") and entry.is_file() and entry.stat().st_size <= _LARGEST):
                raise ValueError(entry.name)
            job.add(json.loads(Path(entry.path).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            job.skipped.append(entry.name)
    if not job.versions:
        raise CommandError(f"{directory} contains no dsfix report: run the job with DSFIX_REPORT={directory}")
    return job


def _print(job: MergedReports, everything: bool) -> None:
    ranks, hosts = ({each.rank for each in job.processes}, {each.host for each in job.processes})
    counts = (len(ranks), "rank"), (len(job.processes), "process"), (len(hosts), "host")
    print(", ".join(_count(*each) for each in counts))
    usual = _usual(job.versions)
    for text, group in sorted(job.versions.items(), key=lambda item: item[0] != usual):
        print(text if text == usual else f"but {text}: {group.named}")
    rows = [
        (
            patch_id,
            outcome.value,
            str(group.ranks),
            str(len(group.processes)),
            "\n".join(filter(None, (group.reason, group.effect_summary, group.named if outlier else ""))),
        )
        for patch_id, outcome, group, outlier in _rows(job)
        if everything or _listed(job.patches[patch_id])
    ]
    if rows:
        output.print_table(("patch", "state", "ranks", "processes", "why"), rows)
    unlisted = [outcome for states in job.patches.values() if not _listed(states) for outcome in states]
    if not everything and (rest := output.count_summary(unlisted)):
        print(f"{rest}: `python -m dsfix list --job DIR --verbose` shows them.")
    if job.skipped:
        print(f"{shortened_list(job.skipped, _NAMED)}: not a dsfix report, skipped")


def _listed(states: Mapping[Outcome, Group]) -> bool:
    """Whether a patch has an effect on some rank, is in trouble, or differs between processes."""
    return len(states) > 1 or any(state in _LISTED or state.trouble for state in states)


def _reason(row: Mapping[str, Any]) -> str:
    """Why the patch has its outcome; of an applied one the title, which says more than the place of its edit."""
    applied = row["outcome"] == Outcome.APPLIED.value
    reason: str = _expect(str, (applied and row.get("title")) or row["reason"])
    return reason


def _effect(row: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The step (0: unknown) and phrase of a patch that took effect in a process; nothing if it did not."""
    effect = row.get("effect")
    return [] if effect is None else [(_expect(int, effect["step"] or 0), _expect(str, effect["what"]))]


def _rows(job: MergedReports) -> list[tuple[str, Outcome, Group, bool]]:
    """(patch, outcome, group, outlier or not): in trouble first, then what differs between processes, then the rest."""
    rows = []
    for patch_id, states in job.patches.items():
        # a process that has not imported the module has no outcome yet
        usual = _usual({outcome: group for outcome, group in states.items() if outcome is not Outcome.PENDING})
        troubled, unlike = any(outcome.trouble for outcome in states), len(states) > 1
        for outcome, group in sorted(states.items(), key=lambda item: -len(item[1].processes)):
            outlier = outcome not in (usual, Outcome.PENDING)
            place = (not troubled, not unlike, outcome in BUG_ABSENT and not unlike, not group.effects, patch_id)
            rows.append((place, (patch_id, outcome, group, outlier)))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _usual(groups: dict[Any, Group]) -> Any:
    """What most ranks report; in a tie, what most processes report."""
    return max(groups, key=lambda key: (groups[key].ranks, len(groups[key].processes)), default=None)


def _as_json(job: MergedReports) -> dict[str, Any]:
    processes = job.processes
    return {
        "processes": len(processes),
        "ranks": len({process.rank for process in processes}),
        "hosts": len({process.host for process in processes}),
        "skipped": job.skipped,
        "versions": [
            {"versions": text, **_counted(group, text != _usual(job.versions))} for text, group in job.versions.items()
        ],
        "patches": [
            {
                "id": patch_id,
                "outcome": outcome.value,
                "reasons": group.reasons,
                "reached": {state: len(ranks) for state, ranks in group.reached.items()},
                "effects": [{"step": step or None, "what": what} for step, what in sorted(set(group.effects))],
                **_counted(group, outlier),
            }
            for patch_id, outcome, group, outlier in _rows(job)
        ],
    }


def _counted(group: Group, outlier: bool) -> dict[str, Any]:
    outliers = [process._asdict() for process in sorted(group.processes)] if outlier else []
    return {"ranks": group.ranks, "processes": len(group.processes), "outliers": outliers}


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _count(number: int, noun: str) -> str:
    plural = {"process": "processes"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"
