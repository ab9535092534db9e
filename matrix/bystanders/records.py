"""The recorded runs: records/<release>.json, one file per release, one line per job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import Complaint
from matrix import fingerprints, proofs
from matrix.bystanders import space
from matrix.bystanders.comparison import State, Verdict
from matrix.bystanders.space import Job

DIRECTORY = Path(__file__).with_name("records")
_LONGEST = 200  # characters of a reason


@dataclass(frozen=True)
class Found:
    """A recorded verdict on all patches or on one; numbers have three significant digits."""

    state: str
    why: str = ""
    before: float = 0.0
    after: float = 0.0
    collectives: int = 0
    syncs: int = 0
    peak: int = 0

    @property
    def worse(self) -> bool:
        return self.state == State.WORSE.value


@dataclass
class Run:
    """One job with all patches compared with none. script: the scenario's fingerprint. run: patch id -> the numbers of
    its statements that were run, as bits of a hexadecimal number. one: patch id -> the verdict on that patch alone."""

    script: str
    found: Found
    run: Mapping[str, str] = field(default_factory=dict)
    one: dict[str, Found] = field(default_factory=dict)


@dataclass
class Record:
    """One release. statements: patch id -> number of its statements, for patches that apply. proved: patch id -> the
    fingerprint of its changes when it was last judged alone."""

    release: str
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)
    proved: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, Run] = field(default_factory=dict)

    def current(self, job: Job) -> Run | None:
        """The job's run, or None if there is none or its script has changed since."""
        run = self.jobs.get(job.id)
        return run if run is not None and run.script == job.scenario.fingerprint() else None

    def is_proved(self, patch_id: str) -> bool:
        """Whether the patch in its current version was judged alone, and a job that runs its lines has the verdict.

        A job that is run again after a change of its script loses those on single patches.
        """
        through = [run for run in self.jobs.values() if patch_id in run.run]
        judged = any(patch_id in run.one for run in through)
        return (judged or not through) and self.proved.get(patch_id) == fingerprints.of_changes(catalogue()[patch_id])


def found(verdict: Verdict) -> Found:
    """The verdict as it is recorded: without paths, numbers rounded."""
    why = " ".join(proofs.without_paths(verdict.why).split())[:_LONGEST]
    numbers: dict[str, Any] = {name: float(f"{getattr(verdict, name):.3g}") for name in ("before", "after")}
    return Found(
        verdict.state.value, why, **numbers, **{n: getattr(verdict, n) for n in ("collectives", "syncs", "peak")}
    )


def load(release: str, directory: Path = DIRECTORY) -> Record:
    """The release's record, empty if there is no file. Raises Complaint if the file is damaged."""
    path = directory / f"{release}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        jobs = {name: _run(each) for name, each in data.pop("jobs").items()}
        return Record(**data, jobs=jobs)
    except FileNotFoundError:
        return Record(release)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Complaint(f"{path} is not a valid bystander record: repair or remove it") from None


def _run(data: Any) -> Run:
    one = {name: Found(**each) for name, each in data.get("one", {}).items()}
    return Run(data["script"], Found(**data["found"]), data.get("run", {}), one)


def load_all(directory: Path = DIRECTORY) -> list[Record]:
    """All records, newest release first."""
    releases = sorted((path.stem for path in directory.glob("*.json")), key=Version, reverse=True)
    return [load(release, directory) for release in releases]


def home(patch_id: str, found: Sequence[Record]) -> Record | None:
    """The record in which the patch is judged alone: the one with all jobs, else the newest where it applies; one with
    few scenarios only if there is no other."""

    def rank(each: Record) -> tuple[bool, bool, Version]:
        return each.release == space.WHOLE, each.release not in space.PARTS, Version(each.release)

    return max((each for each in found if patch_id in each.statements), key=rank, default=None)


def save(record: Record, directory: Path = DIRECTORY) -> None:
    """Write the whole record atomically, one job per line."""
    directory.mkdir(exist_ok=True)
    head = {name: getattr(record, name) for name in ("release", "date", "versions", "statements", "proved")}
    lines = [f" {json.dumps(name)}: {json.dumps(value, sort_keys=True)}," for name, value in head.items()]
    jobs = [f"  {json.dumps(name)}: {json.dumps(_written(run))}" for name, run in sorted(record.jobs.items())]
    text = "{\n" + "\n".join(lines) + '\n "jobs": {\n' + ",\n".join(jobs) + "\n }\n}\n"
    partial = directory / f".{record.release}.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, directory / f"{record.release}.json")


def _written(run: Run) -> dict[str, Any]:
    written: dict[str, Any] = {"script": run.script, "found": _short(run.found)}
    if run.run:
        written["run"] = dict(sorted(run.run.items()))
    if run.one:
        written["one"] = {name: _short(each) for name, each in sorted(run.one.items())}
    return written


def _short(each: Found) -> dict[str, Any]:
    return {name: value for name, value in vars(each).items() if value or name == "state"}


def bits(numbers: Any) -> str:
    """Statement numbers as bits of a hexadecimal number."""
    return f"{sum(1 << number for number in numbers):x}"


def share(record: Record, patch_id: str) -> tuple[int, int]:
    """How many of a patch's statements were run by any job, and how many there are."""
    mask = 0
    for run in record.jobs.values():
        mask |= int(run.run.get(patch_id, "0"), 16)
    return mask.bit_count(), record.statements.get(patch_id, 0)
