"""`changed`: what changed from one release to another: functions, the jobs that reach them, and their results."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from dsfix.cli.exits import OK
from matrix import environments, runner, table
from matrix.bystanders import comparison, space
from matrix.bystanders.space import Job
from matrix.bystanders.trials import NONE, PLAIN, JobResult, Trials
from matrix.changed import functions
from matrix.changed.functions import Change

NAME = "changed"
HELP = "what changed from one release to another: functions, the jobs that reach them, and their results"
_COMPARED = 60
_HERE = Path(__file__).parent

Place = tuple[str, int]  # file and line
Reached = Mapping[str, Collection[Place]]  # by the job's id


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("old", metavar="OLD")
    command.add_argument("new", metavar="NEW")
    command.add_argument(
        "--compare", type=int, default=_COMPARED, metavar="N", help=f"jobs to compare, at most; default: {_COMPARED}"
    )
    command.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="jobs in parallel")


def run(options: argparse.Namespace) -> int:
    """Raises CommandError."""
    table.load().require((options.old, options.new))
    report(options.old, options.new, options.jobs, options.compare)
    return OK


def report(old: str, new: str, at_a_time: int, compare: int = _COMPARED) -> None:
    """Print what changed. It can be interrupted: dsfix's cache keeps what was run. Raises CommandError."""
    changes = functions.between(environments.installed(old), environments.installed(new))
    every = space.samples(space.jobs_of(new))
    print(f"deepspeed {old} to {new}: {len(changes)} functions changed, {len(every)} jobs", flush=True)
    marked: dict[str, JobResult] = {}
    meter = runner.Progress(len(every))
    with (
        Marked(old, new) as trials,
        runner.run_parallel(every, lambda job: trials.run(job, NONE), at_a_time) as ended,
    ):
        for job, seen in ended:
            marked[job.id] = seen
            meter.advance()
    reached = {
        name: {(path, line) for path, lines in seen.run.items() for line in lines} for name, seen in marked.items()
    }
    for sentence in listed(changes, reached):
        print(sentence)
    ids = list(itertools.islice(covering(reached), compare))
    chosen = [job for job in every if job.id in ids]
    print(f"{len(chosen)} jobs reach what any job does:", flush=True)
    meter = runner.Progress(len(chosen))
    with (
        Trials(old, marks=None) as before,
        Trials(new, marks=None) as after,
        runner.run_parallel(chosen, lambda job: compared(job, before, after, marked[job.id]), at_a_time) as ended,
    ):
        for job, sentence in ended:
            print(f"  {job.id}: {sentence or 'the same'}", flush=True)
            meter.advance()


class Marked(Trials):
    """Runs jobs of the new release; `JobResult.run` has the new statements that were reached: file -> lines."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(new, _HERE / "marking.py", DSFIX_MATRIX_OLD=str(environments.installed(old)))
        text = old.encode() + b"".join((_HERE / f"{each}.py").read_bytes() for each in ("functions", "marks"))
        self._since = hashlib.sha256(text).hexdigest()[:8]

    def _kept(self, job: Job, variant: str) -> Path | None:
        kept = super()._kept(job, variant)
        return kept and kept.with_name(f"{kept.name}-{self._since}")


def listed(changes: Sequence[Change], reached: Reached) -> Iterator[str]:
    """A line a module and a line a function: how many jobs reach it, and how many of its new statements any does."""
    for path, group in itertools.groupby(changes, lambda each: each.path):
        yield path
        for each in group:
            mine = {(path, line) for line in each.lines}
            jobs = [mine.intersection(lines) for lines in reached.values() if not mine.isdisjoint(lines)]
            jobs += [set() for lines in reached.values() if (path, each.entry) in lines and mine.isdisjoint(lines)]
            run = f": {len(jobs) or 'no'} jobs, {len(set().union(*jobs))} of {len(mine)} statements" if mine else ""
            yield f"  {each.how} {each.name}{run}"


def covering(reached: Reached) -> Iterator[str]:
    """Jobs that together reach everything that any job does: each adds as much as any other could."""
    covered = set[Place]()
    while any(set(lines) - covered for lines in reached.values()):
        best = max(reached, key=lambda name: len(set(reached[name]) - covered))
        covered.update(reached[best])
        yield best


def compared(job: Job, before: Trials, after: Trials, seen: JobResult) -> str:
    """How the results of a job differ, "" if they do not. seen: on the new release, with marks."""
    old = before.run(job, NONE)
    if not difference(old, seen):
        return ""
    new = after.run(job, NONE)
    drawn = unlike(seen, new)
    old, new = (without(each, drawn) for each in (old, new))
    sentence = difference(old, new)
    if not sentence:
        return ""
    plain = after.run(job, PLAIN) if job.scenario.reference else None
    verdict = comparison.judge(job.setting["precision"], old, new, plain)
    off = f"; {verdict.before:.1e} -> {verdict.after:.1e} off plain PyTorch" if plain else ""
    return f"{verdict.state}, {sentence}{off} ({verdict.why}) {json.dumps(space.differing(job.setting))}"


def difference(one: JobResult, other: JobResult) -> str:
    """How two runs end, if not alike; or where their results differ most, and from where on. "" if they do not."""
    ends = [comparison.ending(each) or "no exception" for each in (one, other)]
    if ends[0] != ends[1]:
        return " -> ".join(ends)
    first = comparison.first_difference(one, other)
    return first and "up to {:.1e} at {}, from {first} on".format(
        *comparison.relative_error(other, one, bits=True), first=first
    )


def unlike(one: JobResult, other: JobResult) -> set[str]:
    """The labels of the results that differ between two runs of one release, such as the padding of a partition."""
    pairs = [(left["notes"], right["notes"]) for left, right in zip(one.ranks, other.ranks) if left and right]
    return {
        mine[0] for left, right in pairs for mine, yours in zip(left, right) if not comparison.same(mine[1], yours[1])
    }


def without(seen: JobResult, labels: Collection[str]) -> JobResult:
    """The run without these results."""
    ranks = [
        {**rank, "notes": [each for each in rank["notes"] if each[0] not in labels]} if rank else None
        for rank in seen.ranks
    ]
    return dataclasses.replace(seen, ranks=tuple(ranks))
