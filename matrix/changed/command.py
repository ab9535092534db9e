"""`changed`: what changed from one release to another: functions, the jobs that reach them, and their results."""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

from dsfix.cli.exits import OK
from matrix import environments, runner, table
from matrix.bystanders import comparison, space
from matrix.bystanders.comparison import judge
from matrix.bystanders.space import Job
from matrix.bystanders.trials import NONE, PLAIN, Seen, Trials
from matrix.changed import functions
from matrix.changed.functions import Change
from matrix.changed.trials import Marked

NAME = "changed"
HELP = "what changed from one release to another: functions, the jobs that reach them, and their results"
_COMPARED = 60

Place = tuple[str, int]  # file and line
Reached = Mapping[str, Collection[Place]]  # by the job's id


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("old", metavar="OLD")
    command.add_argument("new", metavar="NEW")
    command.add_argument("--one-in", type=runner.jobs, default=1, metavar="N", help="only one in N of the jobs")
    command.add_argument(
        "--compare", type=int, default=_COMPARED, metavar="N", help=f"jobs to compare, at most; default {_COMPARED}"
    )
    command.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="jobs in parallel")


def run(options: argparse.Namespace) -> int:
    """Raises Complaint."""
    table.load().require((options.old, options.new))
    return report(options.old, options.new, options.jobs, options.one_in, options.compare)


def report(old: str, new: str, at_a_time: int, one_in: int = 1, compare: int = _COMPARED) -> int:
    """Print what changed. Can be interrupted: what was run is kept in dsfix's cache. Raises Complaint."""
    changes = functions.between(environments.installed(old), environments.installed(new))
    every = space.sparse(space.samples(space.jobs_of(new)), one_in)
    print(f"deepspeed {old} to {new}: {len(changes)} changed functions, {len(every)} jobs", flush=True)
    found: dict[str, Seen] = {}
    reached: dict[str, set[Place]] = {}
    with Marked(old, new) as trials, runner.Meter(len(every)) as meter:
        with runner.each(every, lambda job: trials.run(job, NONE), at_a_time) as ended:
            for job, seen in ended:
                found[job.id] = seen
                reached[job.id] = {(path, line) for path, lines in seen.run.items() for line in lines}
                meter.advance()
    for line in listed(changes, reached):
        print(line)
    ids = set(itertools.islice(covering(reached), compare))
    chosen = [job for job in every if job.id in ids]
    print(f"{len(chosen)} jobs that reach most of what any does:", flush=True)
    with Trials(old, marks=False) as before, Trials(new, marks=False) as after, runner.Meter(len(chosen)) as meter:

        def compared(job: Job) -> str:
            one, other = before.run(job, NONE), found[job.id]
            if difference(one, other):  # run again, without marks
                other = after.run(job, NONE)
            return difference(one, other) and described(job, one, other, after.run(job, PLAIN))

        with runner.each(chosen, compared, at_a_time) as ended:
            for job, line in ended:
                print(f"  {job.id}: {line or 'the same'}", flush=True)
                meter.advance()
    return OK


def listed(changes: Sequence[Change], reached: Reached) -> Iterator[str]:
    """A line a module and a line a function: how many jobs reach it, and how many of its new statements any reaches."""
    for path, group in itertools.groupby(changes, lambda each: each.path):
        yield path
        for each in group:
            mine = {(path, line) for line in each.lines}
            jobs = [mine.intersection(lines) for lines in reached.values() if {(path, each.entry), *mine}.intersection(lines)]
            run = len(set().union(*jobs))
            seen = "" if each.how == "removed" else f": {len(jobs)} jobs, {run} of {len(mine)} statements"
            yield f"  {each.how} {each.name}{seen}"


def covering(reached: Reached) -> Iterator[str]:
    """Jobs that together reach everything that any job does: each adds as much as any other can."""
    covered = set[Place]()
    while any(set(lines) - covered for lines in reached.values()):
        best = max(reached, key=lambda job: len(set(reached[job]) - covered))
        covered.update(reached[best])
        yield best


def difference(one: Seen, other: Seen) -> str:
    """How the results of two runs differ; "" if they do not."""
    ends = comparison.ending(one), comparison.ending(other)
    if ends[0] != ends[1]:
        return " -> ".join(each or "no exception" for each in ends)
    first = comparison.first_difference(one, other)
    return first and "up to {:.1e} at {}, from {first} on".format(*comparison.off(other, one, bits=True), first=first)


def described(job: Job, one: Seen, other: Seen, plain: Seen) -> str:
    """The difference of the results of a job, and its verdict on the new release with the old one as the other run."""
    verdict = judge(job.setting["precision"], one, other, plain if job.scenario.reference else None)
    off = f"{verdict.before:.1e} -> {verdict.after:.1e} off plain PyTorch" if job.scenario.reference else ""
    setting = json.dumps(space.differing(job.setting))
    return f"{verdict.state}: {difference(one, other)}; {off} ({verdict.why}) {setting}"
