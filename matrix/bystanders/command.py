"""``python -m matrix bystanders run``: runs jobs without any patch's bug."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable, Sequence

from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import CommandError
from matrix import edges, environments, runner, table
from matrix.bystanders import docs, records, scenario, space
from matrix.bystanders.records import Record

NAME = "bystanders"
HELP = "run jobs that execute the patches' lines: results must be equal with and without dsfix, or match PyTorch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the jobs of these releases that are not in the record")
    run.add_argument(
        "releases",
        nargs="*",
        metavar="RELEASE",
        help="without one: every release in records/, and each --patch on the one where it is judged",
    )
    run.add_argument("--scenario", nargs="+", default=[], metavar="NAME", help="only jobs of these scenarios")
    run.add_argument(
        "--patch",
        nargs="+",
        default=[],
        metavar="ID",
        help="also disable these patches one by one, in jobs of any scenario",
    )
    run.add_argument(
        "--each-patch",
        action="store_true",
        help="also disable, one by one, each patch that applies here and is not judged in a different record",
    )
    run.add_argument(
        "--pinned",
        nargs="?",
        type=runner.jobs,
        const=1,
        metavar="N",
        help="only the first pinned setting of each scenario, or of one scenario in N and all with known harm; "
        "nothing is recorded",
    )
    run.add_argument("--again", action="store_true", help="rerun jobs that are in the record")
    run.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="jobs in parallel")


def run(options: argparse.Namespace) -> int:
    """0 if no job is worse without an explanation and every --patch is run by a job; else 1. Raises CommandError."""
    table.load().require(options.releases)
    _must_be(options.scenario, scenario.load(), "a scenario")
    _must_be(options.patch, catalogue(), "a patch")
    if options.pinned and (options.patch or options.each_patch):
        raise CommandError("--pinned records nothing: --patch and --each-patch cannot be combined with it")
    asked = _judged_on(options)
    return runner.print_errors(
        NAME, (each for name, patches in asked.items() for each in _release(name, patches, options))
    )


def _release(name: str, patches: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Run its jobs, and judge patches alone. Returns what is wrong, in sentences."""
    from matrix.bystanders import running
    from matrix.bystanders.trials import Trials

    record = Record(name) if options.pinned else records.load(name)
    every = space.jobs_of(name)
    ids = {job.id for job in every}
    record.jobs = {each: run for each, run in record.jobs.items() if each in ids}
    wanted = [job for job in every if not options.scenario or job.scenario.name in options.scenario]
    if options.pinned:
        wanted = space.sparse(space.samples(wanted), options.pinned)
    chosen = [job for job in wanted if options.again or options.pinned or record.current(job) is None]
    alone = _each(record, options.again) if options.each_patch else patches
    print(f"deepspeed {name}: {len(chosen)} of {len(wanted)} jobs, {options.jobs} at a time", flush=True)
    if not chosen and not alone:
        return docs.worse(record)
    unreached = []
    with Trials(name) as trials:
        changed = running.jobs(record, trials, chosen, options.jobs, keep=not options.pinned)
        for patch_id in sorted(changed - set(alone)):
            print(f"the statements of {patch_id} have changed since the record: use --again, or --patch {patch_id}")
        for patch_id in alone:
            print(f"deepspeed {name}: {patch_id}", flush=True)
            if not running.patch(record, trials, patch_id, every, options.jobs) and patch_id in patches:
                unreached.append(f"deepspeed {name}: no job runs a statement of {patch_id}: it needs a scenario")
    return unreached + docs.worse(record)


def _judged_on(options: argparse.Namespace) -> dict[str, list[str]]:
    """Release -> the patches of --patch to judge on it. Raises CommandError."""
    environment = environments.current(table.load())
    known = records.load_all()
    asked: dict[str, list[str]] = {name: [] for name in options.releases or (each.release for each in known)}
    for patch_id in options.patch:
        patch = catalogue()[patch_id].patch
        claimed = [name for name in asked if edges.claimed(patch, environment, name)]
        if len(claimed) < max(1, len(options.releases)):
            [other, *_] = [name for name in asked if name not in claimed]
            raise CommandError(f"{patch_id} does not apply to deepspeed {other}, only to {patch.affects['deepspeed']}")
        for name in claimed if options.releases else [records.preferred(claimed)]:
            asked[name].append(patch_id)
    return asked


def _each(record: Record, again: bool) -> list[str]:
    """The patches whose record this is, and that are not judged in it."""
    this = dataclasses.replace(record, statements=dict.fromkeys(_applying(record), 0))
    known = [*(each for each in records.load_all() if each.release != record.release), this]
    return [
        statement
        for statement in this.statements
        if records.judging_record(statement, known) is this and (again or not record.is_proved(statement))
    ]


def _applying(record: Record) -> list[str]:
    """The patches that its jobs reported as applied, and those off by default that claim the release."""
    release = table.load()
    environment = environments.current(release)
    return [
        name
        for name, entry in catalogue().items()
        if name in record.statements
        or (not entry.patch.default and edges.claimed(entry.patch, environment, record.release))
    ]


def _must_be(names: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise CommandError(f"{name} is not {what}")
