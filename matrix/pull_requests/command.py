"""`upstream patches`: patches as changes of a clone of DeepSpeed, each with a test."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import Complaint
from matrix import runner
from matrix.pull_requests import tree

NAME = "patches"
HELP = "patches as changes of a clone of DeepSpeed, each with a test"
_SECONDS = 900.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("apply", help="make the change in the clone: the fix, and a test that fails without it")
    one.add_argument("patch", metavar="ID")
    one.set_defaults(action=_apply)
    runs = commands.add_parser(
        "run", help="in a copy of the clone: each test has to fail before its fix and pass after"
    )
    runs.add_argument(
        "--patch", nargs="+", default=(), metavar="ID", help="these patches only (default: all that apply)"
    )
    runs.add_argument("--seconds", type=float, default=_SECONDS, metavar="S", help="time limit of one test")
    runs.set_defaults(action=_run)
    for each in (one, runs):
        each.add_argument("--clone", type=Path, required=True, metavar="DIR", help="a clone of DeepSpeed")


def _apply(options: argparse.Namespace) -> int:
    """0 if the fix was made, also where there is no test for it. Raises Complaint."""
    _known(options.patch)
    with tempfile.TemporaryDirectory(prefix="dsfix-pull-request-") as scratch:
        found = tree.pull_requests(options.clone.resolve(), Path(scratch), [options.patch])[options.patch]
    wrong = tree.apply(options.clone, found["diff"]) if found["diff"] else ""
    status = runner.complain(NAME, [*found["notes"], *filter(None, [wrong])])
    return status if wrong or not found["diff"] else 0


def _run(options: argparse.Namespace) -> int:
    """0 if each diff applies, and each test that is run fails before and passes after. Raises Complaint."""
    _known(*options.patch)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="dsfix-pull-requests-") as name:
        scratch, copy = Path(name), Path(name, "DeepSpeed")
        tree.copy(options.clone, copy)
        for patch_id, found in tree.pull_requests(copy, scratch, options.patch).items():
            told, fine = _tried(copy, scratch, found, options.seconds)
            print(f"{patch_id}: {told}", flush=True)
            wrong += [] if fine else [f"{patch_id}: {told}"]
    return runner.complain(NAME, wrong)


def _tried(copy: Path, scratch: Path, found: Mapping[str, Any], seconds: float) -> tuple[str, bool]:
    """What became of a pull request, and whether it is as it should be."""
    diff, test = found["diff"], found["test"]
    refused = tree.apply(copy, diff, "--check") if diff else ""
    if refused or not test:
        return refused or "; ".join(found["notes"]), not refused
    tree.apply(copy, diff, "--include=tests/*")
    before = tree.test(copy, scratch, test, seconds)
    tree.apply(copy, diff, "--exclude=tests/*")
    after = before if before.outcome == "skipped" else tree.test(copy, scratch, test, seconds)
    tree.apply(copy, diff, "--reverse")
    told = ", then ".join(": ".join(filter(None, each)) for each in dict.fromkeys([before, after]))
    return told, (before.outcome, after.outcome) in (("failed", "passed"), ("skipped", "skipped"))


def _known(*ids: str) -> None:
    for each in ids:
        if each not in catalogue():
            raise Complaint(f"no patch is called {each!r}")
