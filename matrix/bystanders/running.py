"""Runs the jobs that are not in the record of a release, then judges single patches."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dsfix.catalogue.registry import catalogue
from dsfix.patch import Severity
from matrix import fingerprints, runner
from matrix.bystanders import records, space
from matrix.bystanders.comparison import State, Verdict, judge
from matrix.bystanders.records import Record, Run
from matrix.bystanders.space import Job
from matrix.bystanders.trials import ALL, NONE, PLAIN, JobResult, Trials, with_also, without
from matrix.runner import Progress

_JOBS_OF_A_PATCH = 24  # at most, in which it is judged alone
_APPLIES = ("applied", "pending")  # pending: the job has not imported its module


def jobs(record: Record, trials: Trials, chosen: Sequence[Job], at_a_time: int, keep: bool = True) -> set[str]:
    """Compare all patches with none. With `keep`, the record is saved after each job.

    Returns the patches whose statement count changed; their hits in other jobs are discarded.
    """
    renumbered = set[str]()
    meter = Progress(len(chosen))
    with runner.run_parallel(chosen, lambda job: _all(job, trials), at_a_time) as ended:
        for job, (verdict, seen) in ended:
            rank = next((rank for rank in seen.ranks if rank), None)
            applied = [name for name, outcome in rank["patches"].items() if outcome in _APPLIES] if rank else []
            counted = {name: rank["statements"][name] for name in applied} if rank else {}
            for name in [each for each, count in counted.items() if record.statements.get(each, count) != count]:
                renumbered.add(name)
                for other in record.jobs.values():  # their statements are numbered differently
                    other.run = {each: other.run[each] for each in other.run if each != name}
            bits = {name: records.bits(numbers) for name, numbers in sorted(seen.run.items())}
            before = record.current(job)
            record.jobs[job.id] = Run(job.scenario.fingerprint(), verdict, bits, before.one if before else {})
            record.date = datetime.date.today().isoformat()
            if rank is not None:
                named = [
                    name for name in record.statements if name in catalogue() and not catalogue()[name].patch.default
                ]
                record.statements = {**{name: record.statements[name] for name in named}, **counted}
                record.versions = rank["versions"]
            if keep:
                records.save(record)
            meter.advance()
    return renumbered


def patch(record: Record, trials: Trials, patch_id: str, every: Sequence[Job], at_a_time: int) -> bool:
    """Judge one patch alone, in jobs that run its lines; if none is known to, in the sample jobs.

    Returns whether any of them runs its lines.
    """
    changes = fingerprints.of_changes(catalogue()[patch_id])
    chosen = list(_jobs_running(record, patch_id, every)) or space.samples(every)
    fresh: dict[str, tuple[Verdict, JobResult]] = {}
    meter = Progress(len(chosen))
    with runner.run_parallel(chosen, lambda job: _one(job, trials, patch_id), at_a_time) as ended:
        for job, each in ended:
            fresh[job.id] = each
            meter.advance()
    rank = next((rank for _, seen in fresh.values() for rank in seen.ranks if rank), None)
    count = record.statements.get(patch_id) if rank is None else rank["statements"][patch_id]
    changed = record.proved.get(patch_id, changes) != changes or record.statements.get(patch_id, count) != count
    for name, run in record.jobs.items():  # drop the results of an earlier version of the patch
        run.one.pop(patch_id, None)
        if name not in fresh and not changed:
            continue
        bits = records.bits(fresh[name][1].run.get(patch_id, ())) if name in fresh else "0"
        run.run = {
            **{each: run.run[each] for each in run.run if each != patch_id},
            **({patch_id: bits} if bits != "0" else {}),
        }
        if bits != "0":
            run.one[patch_id] = fresh[name][0]
    if rank is not None:  # some job got to its end
        record.proved[patch_id] = changes
        record.statements[patch_id] = rank["statements"][patch_id]
    records.save(record)
    return any(seen.run.get(patch_id) for _, seen in fresh.values())


def _all(job: Job, trials: Trials) -> tuple[Verdict, JobResult]:
    result = trials.run(job, ALL)
    verdict = _judged(job, trials, trials.run(job, NONE), result, lambda: trials.run(job, ALL))
    return _cross_checked(verdict, result, job, catalogue()), result


def _one(job: Job, trials: Trials, patch_id: str) -> tuple[Verdict, JobResult]:
    default = catalogue()[patch_id].patch.default
    before, after = (without(patch_id), ALL) if default else (ALL, with_also(patch_id))
    result = trials.run(job, after)
    if patch_id not in result.run:
        return Verdict(State.SAME), result
    if default and not trials.starts(before):
        return Verdict(State.RIGHT, "DeepSpeed cannot be imported without it"), result
    verdict = _judged(job, trials, trials.run(job, before), result, lambda: trials.run(job, after))
    return _cross_checked(verdict, result, job, [patch_id]), result


def _cross_checked(verdict: Verdict, seen: JobResult, job: Job, patches: Iterable[str]) -> Verdict:
    """The verdict, downgraded to "other" if results are equal although a patch reported changing one and the script has
    no workaround for it."""
    claimed_effects = {name for rank in seen.ranks if rank for name in rank["effects"]} - set(job.scenario.works_around)
    false = [
        each
        for each in patches
        if each in claimed_effects and catalogue()[each].patch.severity is Severity.WRONG_RESULT
    ]
    if verdict.state is not State.SAME or not false:
        return verdict
    return replace(verdict, state=State.OTHER, why=f"the results are the same, and {', '.join(false)} took effect")


def _judged(job: Job, trials: Trials, before: JobResult, after: JobResult, again: Callable[[], JobResult]) -> Verdict:
    plain = trials.run(job, PLAIN) if job.scenario.reference else None
    verdict = judge(job.setting["precision"], before, after, plain)
    if verdict.state is State.WORSE:  # repeated, because a busy machine can hang or kill a correct job
        verdict = judge(job.setting["precision"], before, again(), plain)
    return records.rounded(verdict)


def _jobs_running(record: Record, patch_id: str, every: Sequence[Job]) -> Iterator[Job]:
    """Jobs that run the patch's lines: those that work around its bug, then by how many new lines they add."""
    masks = {job.id: int(record.jobs[job.id].run.get(patch_id, "0"), 16) for job in every if job.id in record.jobs}
    around = [job for job in every if masks.get(job.id) and patch_id in job.scenario.works_around]
    yield from around
    waiting = [job for job in every if masks.get(job.id) and job not in around]
    covered = 0
    for _ in range(min(_JOBS_OF_A_PATCH, len(waiting))):
        best = max(waiting, key=lambda job: (masks[job.id] & ~covered).bit_count())
        if not masks[best.id] & ~covered:  # all lines are covered: add others, spread over the scenarios
            yield from waiting[:: max(1, len(waiting) // (_JOBS_OF_A_PATCH // 2))]
            return
        covered |= masks[best.id]
        waiting.remove(best)
        yield best
