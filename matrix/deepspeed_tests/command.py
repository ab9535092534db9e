"""`deepspeed-tests`: run DeepSpeed's own tests on a release without and with dsfix."""

from __future__ import annotations

import argparse
from pathlib import Path

from matrix import runner, table
from matrix.deepspeed_tests import docs, fixes, records, running, selection

NAME = "deepspeed-tests"
HELP = "run a selection of DeepSpeed's own tests from a clone"
_SECONDS = 120.0
_RANKS = 4


def add_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="run the tests that are not in the record, without and with dsfix")
    runs.add_argument("--tests", type=Path, required=True, metavar="DIR", help="a clone of DeepSpeed, or its `tests`")
    runs.add_argument("--release", required=True, metavar="X", help="the release to test")
    runs.add_argument(
        "--of",
        metavar="TAG",
        help="the tag or commit of the tests, if not the release's own: only the tests of upstream's fixes are run",
    )
    runs.add_argument("--limit", type=int, metavar="N", help="at most N parameters of each test function")
    runs.add_argument("--test", nargs="+", default=(), metavar="ID", help="only tests whose ids start with this")
    runs.add_argument("--again", action="store_true", help="rerun tests that are in the record")
    runs.add_argument("--seconds", type=float, default=_SECONDS, metavar="S", help="time limit of one test")
    runs.add_argument("--ranks", type=int, default=_RANKS, metavar="N", help="tests that need more are skipped")
    runs.set_defaults(action=_run)


def run(options: argparse.Namespace) -> int:
    status: int = options.action(options)
    return status


def _run(options: argparse.Namespace) -> int:
    """0 if no test is worse without an explanation, else 1. Raises CommandError."""
    table.load().require([options.release])
    from matrix.deepspeed_tests.processes import Session

    record = records.load(options.release, options.of or f"v{options.release}")
    patches = () if record.own else fixes.enabled()
    made_of = (options.tests, options.release, options.seconds, options.ranks, patches)
    with runner.interruptible(), Session(*made_of) as session:
        files = _files(options, record, session.tests)
        collected, uncollected = session.collect(files)
        record.ranks, record.seconds = options.ranks, options.seconds
        if not options.test:
            record.uncollected = uncollected
            record.collected = len([test for test in collected if not selection.left_out(test)]) if record.own else 0
        tests = running.chosen(collected, record, options.test, options.limit)
        running.run(record, session, tests, options.again)
        running.find_patches(record, session)
    begin = f"{record.release}, tests of {record.tests}: "
    faults = docs.faults(records.load_all())
    return runner.print_errors(NAME, (fault for fault in faults if fault.startswith(begin)))


def _files(options: argparse.Namespace, record: records.Record, tests: Path) -> list[str]:
    if options.test:
        named = dict.fromkeys(each.partition("::")[0] for each in options.test)
        return [each for each in named if (tests / each).exists()]
    return selection.files(tests) if record.own else [file for file in fixes.files() if (tests / file).is_file()]
