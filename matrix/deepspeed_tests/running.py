"""Runs the tests that are not in the record, in groups, without and then with dsfix; repeats those that are worse."""

from __future__ import annotations

import datetime
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from matrix.deepspeed_tests import fixes, records, selection
from matrix.deepspeed_tests.processes import Ended
from matrix.deepspeed_tests.records import VARIANTS, Record, Run
from matrix.runner import Progress

#: tests per process
_GROUP = 100
#: how often worse tests are repeated on both sides
_REPEATS = 2


class Tests(Protocol):
    """The interface of matrix.deepspeed_tests.processes.Session."""

    @property
    def versions(self) -> dict[str, str]: ...
    def build(self) -> None: ...
    def run(self, variant: str, tests: Sequence[str], left_out: Sequence[str] = ()) -> Iterator[Ended]: ...


def run(record: Record, session: Tests, tests: Sequence[str], again: bool = False) -> None:
    """Run these tests in both variants and save each as it ends. again: discard their recorded runs first."""
    for test in tests:
        if again or test not in record.runs:
            record.runs[test] = Run()
    rest = [test for test in tests if not record.runs[test].complete]
    print(f"deepspeed {record.release}, tests of {record.tests}: {len(rest)} of {len(tests)} to run", flush=True)
    if rest:
        session.build()
    meter = Progress(len(rest))
    for group in _groups(rest):
        for variant in VARIANTS:
            for ended in session.run(variant, [each for each in group if not record.runs[each].outcomes(variant)]):
                _store(record, session, variant, ended)
                if record.runs[ended.test].complete:
                    meter.advance()
        _repeat(record, session, [test for test in group if record.runs[test].worse])


def find_patches(record: Record, session: Tests) -> None:
    """Find the patches that make the tests of `fixes` pass, by disabling each one with all others enabled."""
    wanted: dict[str, list[str]] = {}
    for test, each in record.runs.items():
        for patch in fixes.patches(test) if each.better else ():
            if patch not in each.left_out:
                wanted.setdefault(patch, []).append(test)
    for patch, tests in wanted.items():
        for ended in session.run("with", tests, [patch]):
            record.runs[ended.test].left_out[patch] = ended.outcome
            records.save(record)


def _repeat(record: Record, session: Tests, tests: Sequence[str]) -> None:
    for _ in range(_REPEATS if tests else 0):
        for variant in VARIANTS:
            for ended in session.run(variant, tests):
                _store(record, session, variant, ended)
    for test in tests:
        each = record.runs[test]
        print(f"  {test}: without {each.without}, with {each.patched}", file=sys.stderr, flush=True)


def _store(record: Record, session: Tests, variant: str, ended: Ended) -> None:
    record.runs[ended.test].add(variant, ended.outcome, ended.detail)
    record.date = datetime.date.today().isoformat()
    record.versions = dict(session.versions)
    records.save(record)


def _groups(tests: Sequence[str]) -> Iterator[list[str]]:
    """Groups in the order of files, so that each group imports few files."""
    ordered = sorted(tests, key=lambda test: test.partition("::")[0])
    rest = iter(ordered)
    while group := list(itertools.islice(rest, _GROUP)):
        yield group


def chosen(tests: Sequence[str], record: Record, prefixes: Sequence[str], limit: int | None) -> list[str]:
    """The collected tests that start with one of `prefixes`. By default, of the release's own tests those selected; of
    others, those that came with fixes that the release does not have.
    """
    if prefixes:
        selected = [test for test in tests if test.startswith(tuple(prefixes))]
    elif record.own:
        selected = [test for test in tests if not selection.left_out(test)]
    else:
        selected = [test for test in tests if fixes.lacking(test, record.release)]
    return selection.sampled(selected, limit)
