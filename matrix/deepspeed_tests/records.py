"""The recorded runs of DeepSpeed's tests: one file per release and origin of the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.settings import write_atomically
from matrix import table

DIRECTORY = Path(__file__).with_name("records")
VARIANTS = ("without", "with")
#: from good to bad; the last two are a process that hung or crashed
_RANKS = {"passed": 0, "xpassed": 0, "skipped": 1, "xfailed": 1, "failed": 2, "error": 2, "timeout": 3, "died": 3}


@dataclass
class Run:
    """One test: its outcomes without and with dsfix, in order.

    why: variant -> the message of the worst outcome. left_out: patch -> the outcome with all patches but this one.
    """

    without: list[str] = field(default_factory=list)
    patched: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def outcomes(self, variant: str) -> list[str]:
        return self.patched if variant == "with" else self.without

    def add(self, variant: str, outcome: str, detail: str) -> None:
        seen = self.outcomes(variant)
        if detail and (not seen or badness(outcome) >= max(map(badness, seen))):
            self.why[variant] = detail
        seen.append(outcome)

    @property
    def complete(self) -> bool:
        return bool(self.without and self.patched)

    @property
    def worse(self) -> bool:
        """Whether the worst outcome with dsfix is worse than the worst without it."""
        return self.complete and worst(self.patched) > worst(self.without)

    @property
    def better(self) -> bool:
        """Whether the test always fails without dsfix and always passes with it."""
        return self.complete and min(map(badness, self.without)) > 1 and worst(self.patched) == 0


@dataclass
class Record:
    """The tests of `tests`, a tag or commit of DeepSpeed, that were run on `release`.

    collected: number of tests in the selected files. uncollected: file -> why it cannot be collected. ranks: number of
    devices that the tests see.
    """

    release: str
    tests: str
    ranks: int = 0
    seconds: float = 0.0
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    collected: int = 0
    uncollected: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether the tests are those of the release."""
        return self.tests == f"v{self.release}"


def badness(outcome: str) -> int:
    return _RANKS[outcome]


def worst(outcomes: list[str]) -> int:
    return max(map(badness, outcomes))


def path(release: str, tests: str, directory: Path = DIRECTORY) -> Path:
    return directory / (f"{release}.json" if tests == f"v{release}" else f"{release}-{tests}.json")


def load(release: str, tests: str, directory: Path = DIRECTORY) -> Record:
    """The record, empty without a file."""
    file = path(release, tests, directory)
    return _read(file) if file.is_file() else Record(release, tests)


def load_all(directory: Path = DIRECTORY) -> list[Record]:
    """All records, newest release first."""
    records = [_read(file) for file in directory.glob("*.json")]
    return sorted(records, key=lambda each: (Version(each.release), each.tests), reverse=True)


def _read(file: Path) -> Record:
    data = json.loads(file.read_text(encoding="utf-8"))
    runs = {test: _run(row) for test, row in data.pop("runs").items()}
    return Record(**data, runs=runs)


def _run(row: Mapping[str, Any]) -> Run:
    return Run(
        row.get("without", []).copy(),
        row.get("with", []).copy(),
        dict(row.get("why", {})),
        dict(row.get("left_out", {})),
    )


def save(record: Record, directory: Path = DIRECTORY) -> None:
    """One line per test that has been run."""
    runs = {test: _row(run) for test, run in sorted(record.runs.items()) if run.without or run.patched}
    text = table.lines({**vars(record), "runs": runs}, "uncollected", "runs")
    write_atomically(path(record.release, record.tests, directory), text.encode())


def _row(run: Run) -> dict[str, Any]:
    row = {"without": run.without, "with": run.patched, "why": run.why, "left_out": run.left_out}
    return {name: value for name, value in row.items() if value}
