"""The table of releases, releases.json: the DeepSpeed releases, and the environments each is run in."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.cli.exits import CommandError
from dsfix.settings import write_atomically

PATH = Path(__file__).with_name("releases.json")


@dataclass(frozen=True)
class Environment:
    """The environment of a run: exact versions of the distributions, and Python's minor version.

    since, until: the first and the last DeepSpeed release that people run with them, "" if all before or after are.
    """

    name: str
    python: str
    distributions: Mapping[str, str]
    since: str = ""
    until: str = ""

    @property
    def torch(self) -> str:
        return self.distributions["torch"]

    def runs(self, release: Release) -> bool:
        """Whether that DeepSpeed release is run with it."""
        begun = not self.since or release.version >= Version(self.since)
        return begun and (not self.until or release.version <= Version(self.until))


@dataclass(frozen=True)
class Release:
    """One final DeepSpeed release.

    released: the day of its upload, YYYY-MM-DD. requires: distribution -> the specifiers in its metadata. pythons: the
    versions in its metadata. sampled: whether CI runs tests/release on it.
    """

    deepspeed: str
    released: str
    requires: Mapping[str, str]
    pythons: tuple[str, ...]
    sampled: bool

    @property
    def version(self) -> Version:
        return Version(self.deepspeed)


@dataclass(frozen=True)
class Table:
    """All releases, ordered by version, and the environments by name: the first has every cell, the others ends."""

    environments: Mapping[str, Environment]
    releases: tuple[Release, ...]

    def release(self, deepspeed: str) -> Release:
        """The release with that version. Raises KeyError."""
        for each in self.releases:
            if each.deepspeed == deepspeed:
                return each
        raise KeyError(deepspeed)

    def require(self, names: Iterable[str]) -> None:
        """Raises CommandError for a release that is not in the table."""
        known = [each.deepspeed for each in self.releases]
        for name in names:
            if name not in known:
                raise CommandError(f"deepspeed {name} is not in the table of releases")

    def run_in(self, environment: str) -> tuple[Release, ...]:
        """The releases run in that environment."""
        return tuple(each for each in self.releases if self.environments[environment].runs(each))


def load(path: Path = PATH) -> Table:
    """The table. Raises CommandError if the file is damaged."""
    try:
        table = _read(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"{path} is not a valid table of releases: repair it") from None
    if not (table.environments and table.releases):
        raise CommandError(f"{path} has no environment or no release")
    return table


def _read(data: Any) -> Table:
    environments = {}
    for name, versions in data["environments"].items():
        distributions = {key: value for key, value in versions.items() if key not in ("python", "since", "until")}
        bounds = versions.get("since", ""), versions.get("until", "")
        environments[name] = Environment(name, versions["python"], distributions, *bounds)
    releases = (Release(**{**row, "pythons": tuple(row["pythons"])}) for row in data["releases"])
    return Table(environments, tuple(sorted(releases, key=lambda each: each.version)))


def save(table: Table, path: Path = PATH) -> None:
    """Write the table, one release per line."""
    environments = {}
    for environment in table.environments.values():
        bounds = {name: value for name, value in (("since", environment.since), ("until", environment.until)) if value}
        environments[environment.name] = {"python": environment.python, **environment.distributions, **bounds}
    rows = [vars(each) for each in sorted(table.releases, key=lambda each: each.version)]
    text = lines({"environments": environments, "releases": rows}, "environments", "releases")
    write_atomically(path, text.encode())


def lines(data: Mapping[str, Any], *tables: str) -> str:
    """JSON of the data with one line for each value; those named `tables` have one for each of their entries."""
    parts = []
    for name, value in data.items():
        text = json.dumps(value)
        if name in tables and isinstance(value, Mapping):
            text = "{\n  " + ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
        elif name in tables:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def span(chosen: Collection[str], releases: Sequence[str]) -> str:
    """The chosen releases, with consecutive ones joined: "0.12.0 to 0.14.0, 0.14.2"."""
    runs: list[list[str]] = []
    before = ""
    for release in releases:
        if release in chosen:
            if before in chosen:
                runs[-1].append(release)
            else:
                runs.append([release])
        before = release
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)
