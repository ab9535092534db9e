"""What was run: records/<release>.json, facts only. A release is one file, a config one line of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.audit.agreement import Difference, Verdict
from dsfix.cli.exits import Complaint
from matrix import proofs

DIRECTORY = Path(__file__).with_name("records")
VARIANTS = ("without", "with")  # dsfix's patches
_LONGEST = 300  # characters of a sentence
_NAMES = 3  # parameters that are named


@dataclass(frozen=True)
class Found:
    """A Difference as recorded: numbers to four digits, the parameters that differ most."""

    phase: str
    what: str
    step: int
    names: tuple[str, ...]
    got: float
    wanted: float
    off: float
    bound: float
    detail: str = ""


@dataclass(frozen=True)
class Run:
    """One config in one variant. failed: why there is no comparison, else ""."""

    comparisons: int
    differences: tuple[Found, ...] = ()
    failed: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Class:
    """Disagreements with one cause, as far as that shows: of the same kinds in all configs that hold these levels.

    variant: "with" where it is there with dsfix (and without), "without" where that has to be. minimal: the levels that
    are not the plain ones, none of which can be left out. shown: the disagreements there, at least one. patches: those
    that it takes to cure it.
    """

    variant: str
    minimal: Mapping[str, str]
    shown: tuple[Found, ...]
    patches: tuple[str, ...] = ()


@dataclass
class Record:
    """One release. runs: config -> variant -> run; versions, device and date are those of the last run."""

    release: str
    date: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    runs: dict[str, dict[str, Run]] = field(default_factory=dict)
    classes: list[Class] = field(default_factory=list)


def run_of(verdict: Verdict) -> Run:
    """What of a verdict is recorded."""
    return Run(
        comparisons=verdict.comparisons,
        differences=tuple(_found(each) for each in verdict.differences),
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


def _sentence(text: str) -> str:
    text = " ".join(proofs.without_paths(text).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def load(release: str, directory: Path = DIRECTORY) -> Record:
    """An empty one where there is none. Raises Complaint where the file is not what `save` writes."""
    path = directory / f"{release}.json"
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Record(release)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Complaint(f"{path} cannot be read as a record of the sweep: mend or remove it") from None


def load_all(directory: Path = DIRECTORY) -> list[Record]:
    """The newest release first."""
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
    """Write it whole, one config or class per line."""
    directory.mkdir(exist_ok=True)
    head = {name: getattr(record, name) for name in ("release", "date", "device", "versions", "patches")}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    runs = [
        f"  {json.dumps(config)}: {json.dumps({variant: _row(run) for variant, run in sorted(variants.items())})}"
        for config, variants in sorted(record.runs.items())
    ]
    classes = [f"  {json.dumps(asdict(each))}" for each in record.classes]
    text = "\n".join(
        ["{", *lines, ' "runs": {', ",\n".join(runs), " },", ' "classes": [', ",\n".join(classes), " ]", "}"]
    )
    partial = directory / f".{record.release}.partial"
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, directory / f"{record.release}.json")


def _row(run: Run) -> dict[str, Any]:
    """What is not empty."""
    return {name: value for name, value in asdict(run).items() if value or name == "comparisons"}
