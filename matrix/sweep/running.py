"""Runs the configs that are not in the record, then classifies disagreements."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from dsfix.audit.agreement import AuditVerdict
from matrix import runner
from matrix.runner import Meter
from matrix.sweep import classes, covering, records, space
from matrix.sweep.records import VARIANTS, Class, Found, Record, Run
from matrix.sweep.space import Row

#: row, variant, patches to disable
Try = Callable[[Row, str, Sequence[str]], AuditVerdict]


def release(name: str, run: Try, jobs: int, again: bool, configs: Sequence[str] = ()) -> Record:
    """Run the configs of one release (all, or only `configs`) in both variants, and save each as it ends."""
    record = records.load(name)
    if again and not configs:
        record.classes = []
    rows = {space.identify(row): row for row in covering.load()}
    tasks = [
        (config, variant)
        for config in rows
        for variant in VARIANTS
        if (not configs or config in configs) and (again or variant not in record.runs.get(config, {}))
    ]
    print(f"deepspeed {name}: {len(tasks)} of {len(VARIANTS) * len(rows)} runs, {jobs} in parallel", flush=True)
    with Meter(len(tasks)) as meter, runner.each(tasks, lambda task: run(rows[task[0]], task[1], ()), jobs) as ended:
        for (config, variant), verdict in ended:
            _store(record, config, variant, verdict)
            meter.advance()
    return record


def _store(record: Record, config: str, variant: str, verdict: AuditVerdict) -> None:
    record.runs.setdefault(config, {})[variant] = records.run_of(verdict)
    record.date = datetime.date.today().isoformat()
    if verdict.versions:
        record.versions, record.device = dict(verdict.versions), verdict.device
    if variant == "with":
        record.patches = tuple(sorted({*record.patches, *verdict.patches}))
    records.save(record)


def classify(record: Record, run: Try, jobs: int) -> None:
    """Find the class of every disagreement in the record, and drop classes that no longer match any config."""
    rows = {space.identify(row): row for row in covering.load()}
    shown = [
        (row, variant, each)
        for variant in VARIANTS
        for row, run_ in _disagreeing(record, rows, variant)
        for each in classes.findings(run_)
    ]
    record.classes = [
        one
        for one in record.classes
        if any(variant == one.variant and classes.holds(one, variant, row, each) for row, variant, each in shown)
    ]
    others = [one for other in records.load_all() if other.release != record.release for one in other.classes]
    seen: dict[tuple[str, str, tuple[str, ...]], Run] = {}

    def attempt(row: Row, variant: str, left_out: Sequence[str]) -> Run:
        key = space.identify(row), variant, tuple(left_out)
        if key not in seen:
            known = record.runs.get(key[0], {}).get(variant) if not left_out else None
            seen[key] = known or records.run_of(run(row, variant, left_out))
        return seen[key]

    def reduced(row: Row, variant: str, each: Found) -> Class:
        known = [*record.classes, *others]
        found = classes.but(classes.reduce(row, variant, each, attempt, known), record.classes)
        if variant == "with" or not found.shown:  # empty if a class found meanwhile includes its findings
            return found
        return classes.with_fixes(found, record.patches, attempt, known)

    # start with disagreements that occur with dsfix, which explain those without it, and with small configs
    shown.sort(key=lambda one: (one[1] != "with", len(space.differing(one[0]))))
    with ThreadPoolExecutor(jobs) as pool:
        while shown := [one for one in shown if not any(_held(each, one) for each in record.classes)]:
            # of different kinds, because those of one kind often share a cause
            several = {(one[1], classes.kind(one[2])): one for one in reversed(shown) if one[1] == shown[0][1]}
            chosen = [one for one in shown if one in several.values()][:jobs]
            for one, found in zip(chosen, pool.map(lambda one: reduced(*one), chosen)):
                if not any(_held(each, one) for each in record.classes):
                    found = classes.but(found, record.classes)
                    line = f"{found.variant}: {found.minimal}: {found.shown[0]} {found.patches}"
                    print(f"  {line}", file=sys.stderr, flush=True)
                    record.classes.append(found)
                    records.save(record)
    records.save(record)


def _held(found: Class, one: tuple[Row, str, Found]) -> bool:
    row, variant, each = one
    return classes.holds(found, variant, row, each)


def _disagreeing(record: Record, rows: Mapping[str, Row], variant: str) -> list[tuple[Row, Run]]:
    return [
        (rows[config], runs[variant])
        for config, runs in record.runs.items()
        if config in rows and variant in runs and classes.findings(runs[variant])
    ]
