"""`parts`: compare the public parts of DeepSpeed with their references, on releases, without and with dsfix."""

from __future__ import annotations

import argparse
import os

from dsfix.cli.exits import CommandError
from matrix import runner, table
from matrix.runner import Progress

NAME = "parts"
HELP = "compare the public parts of DeepSpeed with their references"


def add_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="run the parts that are not in the record; what was run is kept")
    runs.add_argument("releases", nargs="*", metavar="RELEASE", help="by default the last of each minor")
    runs.add_argument("--part", nargs="+", default=(), metavar="NAME", help="only these parts, or areas")
    runs.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="runs in parallel")
    runs.add_argument("--again", action="store_true", help="run parts that are in the record again")
    runs.add_argument("--check", action="store_true", help="leave the record as it is, and complain of what differs")
    runs.set_defaults(action=_run)


def run(options: argparse.Namespace) -> int:
    status: int = options.action(options)
    return status


def _run(options: argparse.Namespace) -> int:
    """0 if everything that was asked for agrees, is patched or explained. Raises CommandError."""
    from matrix.parts import docs, part, record, running

    table.load().require(options.releases)
    every = part.load()
    for name in options.part:
        if name not in every and name not in {each.area for each in every.values()}:
            raise CommandError(f"{name} is neither a part nor an area")
    chosen = [
        each
        for each in every.values()
        if each.check and (not options.part or each.name in options.part or each.area in options.part)
    ]
    kept = record.load()
    releases = options.releases or docs.releases()
    batches = [
        batch
        for release in releases
        for batch in running.batches(release, [e for e in chosen if options.again or docs.stale(kept, e, release)])
    ]
    known = {
        each.name: {name for line in kept.values() if line.part == each.name for name in line.patches}
        for each in chosen
    }
    print(f"{sum(len(each.parts) for each in batches)} parts in {len(batches)} processes", flush=True)
    meter = Progress(len(batches))
    with running.Children() as children:

        def work(batch: running.Batch) -> list[record.Line]:
            return running.run(batch, children, known)

        with runner.run_parallel(batches, work, options.jobs) as ended:
            for _, lines in ended:
                for line in lines:
                    kept[line.part, line.release] = line
                    if line.outcome != record.AGREES:
                        meter.say(str(line))
                if not options.check:
                    record.save(kept)
                meter.advance()
    return runner.print_errors(NAME, docs.faults(kept, chosen, releases))
