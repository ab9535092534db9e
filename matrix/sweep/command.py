"""`sweep`: run the audit over the space of configs, on a release without and with dsfix."""

from __future__ import annotations

import argparse
import os

from dsfix.cli.exits import OK, Complaint
from matrix import runner, table
from matrix.sweep import covering, docs, records, running, space

NAME = "sweep"
HELP = "the audit over the space of configs"


def add_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="run the configs that are not in the record, and classify disagreements")
    runs.add_argument("releases", nargs="+", metavar="RELEASE")
    runs.add_argument("--config", nargs="+", default=(), metavar="ID", help="only these configs")
    runs.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="runs in parallel")
    runs.add_argument("--again", action="store_true", help="run configs that are in the record again")
    runs.set_defaults(action=_run)
    covered = commands.add_parser("cover", help="write configs.json from the factors and their constraints")
    covered.set_defaults(action=_cover)


def run(options: argparse.Namespace) -> int:
    status: int = options.action(options)
    return status


def _run(options: argparse.Namespace) -> int:
    """0 if everything was run and is explained, else 1. Raises Complaint."""
    table.load().require(options.releases)
    ids = {space.identify(row) for row in covering.load()}
    for name in options.config:
        if name not in ids:
            raise Complaint(f"{name} is not a config of the sweep")
    from matrix.sweep.trials import Trials

    for name in options.releases:
        with Trials(name) as trials:
            record = running.release(name, trials.run, options.jobs, options.again, options.config)
            running.classify(record, trials.run, options.jobs)
    faults = docs.faults(records.load_all())
    return runner.complain(NAME, (each for each in faults if each.partition(":")[0] in options.releases))


def _cover(options: argparse.Namespace) -> int:
    rows = covering.make()
    covering.save(rows)
    print(f"{covering.PATH.name}: {len(rows)} configs")
    return OK
