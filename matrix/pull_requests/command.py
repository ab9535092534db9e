"""`upstream patches`: the diffs that `diff ID --upstream` writes, applied and tested on a clone of DeepSpeed."""

from __future__ import annotations

import argparse
import datetime
import tempfile
from pathlib import Path

from dsfix.cli.exits import OK, TROUBLE
from matrix import page_of_records
from matrix.pull_requests import records
from matrix.pull_requests.records import Record, Row
from matrix.pull_requests.tree import Tree

NAME = "patches"
HELP = "`diff ID --upstream` on a clone of DeepSpeed: whether each test fails before the fix and passes after it"
_SECONDS = 900.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("run", help="run what is not in the record of this commit")
    runs.add_argument("--clone", type=Path, required=True, metavar="DIR", help="a clone of DeepSpeed, at a tag")
    runs.add_argument("--patch", nargs="+", default=(), metavar="ID", help="these patches only")
    runs.add_argument("--again", action="store_true", help="run what is in the record again")
    runs.add_argument("--seconds", type=float, default=_SECONDS, metavar="S", help="time limit of one test")
    runs.set_defaults(action=_run)


def _run(options: argparse.Namespace) -> int:
    """0 if each diff applies, and each test that is run fails before and passes after. Raises Complaint."""
    with tempfile.TemporaryDirectory(prefix="dsfix-pull-requests-") as scratch:
        tree = Tree(options.clone, Path(scratch), options.seconds)
        record = records.load()
        if record.tree != tree.name:
            record = Record(tree.name)
        known = {*record.rows} - ({*options.patch} or {*record.rows} if options.again else set())
        asked = [each for each in options.patch or tree.patches() if each not in known]
        try:
            _all(tree, record, asked)
        finally:
            tree.close()
    wrong = [
        f"{name}: {row.applies or row.after}" for name, row in record.rows.items() if name in asked and row.trouble
    ]
    status = page_of_records.complain(NAME, wrong)
    return TROUBLE if status else OK


def _all(tree: Tree, record: Record, asked: list[str]) -> None:
    """First all tests without a fix, in one process, then each with its own."""
    made = {}
    for patch_id in asked:
        found = tree.diff(patch_id)
        if not found["diff"] and "does not apply here" in found["notes"][0]:
            continue  # off by default, and the tree does not have its bug
        row = Row(lines=_size(found["diff"]), notes=found["notes"], test=found["test"])
        row.applies = tree.apply(found["diff"], "--check") if found["diff"] else ""
        record.rows[patch_id] = row
        if row.test and not row.applies:
            made[patch_id] = found["diff"]
        print(f"{patch_id}: {row.lines} lines, {row.applies or row.test or row.notes}", flush=True)
    for diff in made.values():
        tree.apply(diff, "--include=tests/*")
    before = tree.test([record.rows[each].test for each in made]) if made else {}
    for patch_id, diff in made.items():
        row = record.rows[patch_id]
        seen = before[row.test]
        row.before = [seen.outcome, seen.detail]
        if seen.outcome != "skipped":
            row.after = _after(tree, diff, row.test)
            if row.insufficient:
                row.with_others = _with_others(tree, made, patch_id)
        print(f"{patch_id}: {row.before}, then {row.after} {row.with_others}", flush=True)
        record.date = datetime.date.today().isoformat()
        records.save(record)
    records.save(record)


def _after(tree: Tree, diff: str, test: str) -> list[str]:
    tree.apply(diff, "--exclude=tests/*")
    seen = tree.test([test])[test]
    tree.apply(diff, "--exclude=tests/*", "--reverse")
    return [seen.outcome, seen.detail]


def _with_others(tree: Tree, made: dict[str, str], patch_id: str) -> list[str]:
    """The same with all other fixes that apply on top: the test may meet another of the bugs."""
    applied = [patch_id]
    tree.apply(made[patch_id], "--exclude=tests/*")
    for other, diff in made.items():
        if other != patch_id and not tree.apply(diff, "--exclude=tests/*"):
            applied.append(other)
    test = f"tests/{made[patch_id].rpartition('+++ b/tests/')[2].partition(chr(10))[0]}"
    seen = tree.test([test])[test]
    for each in reversed(applied):
        tree.apply(made[each], "--exclude=tests/*", "--reverse")
    return [seen.outcome, seen.detail]


def _size(diff: str) -> int:
    """Lines that the fix adds and removes, without its test."""
    source = diff.partition("diff --git a/tests/")[0].splitlines()
    return sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in source if line)
