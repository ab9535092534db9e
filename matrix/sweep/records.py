"""The recorded runs: records/<release>.json, one file per release, one line per config."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.audit.agreement import AuditVerdict, Difference
from dsfix.cli.exits import Complaint
from dsfix.settings import write_whole
from matrix import proofs, table

DIRECTORY = Path(__file__).with_name("records")
VARIANTS = ("without", "with")  # dsfix's patches
RACE = "race"  # what is found where uses of memory are not ordered
_LONGEST = 300  # characters of a message
_NAMES = 3  # parameters that are listed


class Found(Difference):
    """A recorded Difference: numbers have four significant digits, names are those of the most different parameters."""


@dataclass(frozen=True)
class Run:
    """One config in one variant. failed: why there is no comparison, "" if there is one."""

    comparisons: int
    differences: tuple[Found, ...] = ()
    failed: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Class:
    """Disagreements that apparently share a cause: of the same kinds in all configs with these levels.

    variant: "with" if it also occurs with dsfix, else "without". minimal: the levels that are not plain, none of which
    can be removed. shown: the disagreements, at least one. patches: those needed to fix it.
    """

    variant: str
    minimal: Mapping[str, str]
    shown: tuple[Found, ...]
    patches: tuple[str, ...] = ()


@dataclass
class Record:
    """One release. runs: config -> variant -> run. versions, device and date are those of the last run."""

    release: str
    date: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    runs: dict[str, dict[str, Run]] = field(default_factory=dict)
    classes: list[Class] = field(default_factory=list)


def run_of(verdict: AuditVerdict) -> Run:
    """The recorded part of a verdict."""
    races = (_raced(verdict.races),) if verdict.races else ()
    return Run(
        comparisons=verdict.comparisons,
        differences=(*(_found(each) for each in verdict.differences), *races),
        failed=_sentence(verdict.failed),
        seconds=round(verdict.seconds, 1),
    )


def _found(difference: Difference) -> Found:
    numbers = {name: float(f"{getattr(difference, name):.4g}") for name in ("got", "wanted", "off", "bound")}
    return Found(
        phase=difference.phase,
        what=difference.what,
        step=difference.step,
        names=tuple(difference.names[:_NAMES]),
        detail=_sentence(difference.detail),
        **numbers,
    )


def _raced(races: Sequence[str]) -> Found:
    """The races of a run as one finding: how many, and the first in short."""
    many = f"{len(races)} races, one of them: " if len(races) > 1 else ""
    return Found("streams", RACE, 0, (), 0.0, 0.0, 0.0, 0.0, _sentence(many + _uses(races[0])))


def _uses(race: str) -> str:
    """Both uses of a race, as dsfix.lab.cuda.races describes it, each with its innermost frame."""
    uses: list[str] = []
    placed = True
    for line in race.splitlines():
        if use := re.match(r"(?:race: |    and )(.*)", line):
            uses.append(use[1])
            placed = False
        elif not placed:
            uses[-1] += f" ({os.path.basename(line.strip(' ()'))})"
            placed = True
    return "; ".join(uses)


def _sentence(text: str) -> str:
    text = " ".join(proofs.without_paths(text).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def load(release: str, directory: Path = DIRECTORY) -> Record:
    """The release's record, empty if there is no file. Raises Complaint if the file is damaged."""
    path = directory / f"{release}.json"
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Record(release)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Complaint(f"{path} is not a valid sweep record: repair or remove it") from None


def load_all(directory: Path = DIRECTORY) -> list[Record]:
    """All records, newest release first."""
    releases = sorted((path.stem for path in directory.glob("*.json")), key=Version, reverse=True)
    return [load(release, directory) for release in releases]


def _read(data: Any) -> Record:
    runs = {
        config: {variant: _run(run) for variant, run in variants.items()} for config, variants in data["runs"].items()
    }
    classes = [
        Class(
            each["variant"], each["minimal"], tuple(_difference(one) for one in each["shown"]), tuple(each["patches"])
        )
        for each in data["classes"]
    ]
    head = {name: data[name] for name in ("release", "date", "device", "versions")}
    return Record(**head, patches=tuple(data["patches"]), runs=runs, classes=classes)


def _run(data: Any) -> Run:
    return Run(**{**data, "differences": tuple(_difference(each) for each in data.get("differences", ()))})


def _difference(data: Any) -> Found:
    return Found(**{**data, "names": tuple(data["names"])})


def save(record: Record, directory: Path = DIRECTORY) -> None:
    """One config or class per line."""
    runs = {
        config: {variant: _row(run) for variant, run in sorted(variants.items())}
        for config, variants in sorted(record.runs.items())
    }
    data = {**vars(record), "runs": runs, "classes": [asdict(each) for each in record.classes]}
    write_whole(directory / f"{record.release}.json", table.lines(data, "runs", "classes").encode())


def _row(run: Run) -> dict[str, Any]:
    """The fields that are not empty."""
    return {name: value for name, value in asdict(run).items() if value or name == "comparisons"}
