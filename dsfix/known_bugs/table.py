"""table.tsv: the known bugs of DeepSpeed's releases, one per row; README.md describes the columns."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

PATH = Path(__file__).with_name("table.tsv")
COLUMNS = ("key", "first", "last", "severity", "weight", "area", "bug", "state", "links")
SEVERITIES = ("wrong-result", "hang", "crash", "import", "leak", "performance", "usability", "cosmetic")
AREAS = (
    *("engine", "precision", "zero-1/2", "zero-3", "offload", "zero++", "pipeline", "moe", "sequence"),
    *("tensor-parallel", "optimizer", "scheduler", "checkpoint", "compile", "inference", "data", "launcher"),
    *("profiler", "import"),
)
BY_NAME = ("patch", "explain", "check", "doctor")  # what a hand-written state may name
BY_REASON = ("part", "unsafe", "outside", "unreachable", "unconfirmed", "open")  # what it may give a reason for
_HOME = "deepspeedai/DeepSpeed"


@dataclass(frozen=True)
class Row:
    """One bug.

    key: where it is fixed or reported, see `url`. first, last: the affected releases; last None where the newest has
    the bug. about: an end of the range is a guess. weight: how much it matters, 5 to 1. states: (kind, name or reason)
    written by hand.
    """

    key: str
    first: Version
    last: Version | None
    about: bool
    severity: str
    weight: int
    area: str
    bug: str
    states: tuple[tuple[str, str], ...]
    links: tuple[str, ...]

    def has(self, release: Version) -> bool:
        return self.first <= release and (self.last is None or release <= self.last)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(address for each in (self.key, *self.links) if (address := url(each)))

    @property
    def worst(self) -> tuple[int, int, str]:
        return SEVERITIES.index(self.severity), -self.weight, self.key


@dataclass(frozen=True)
class Table:
    """releases: all final releases that the rows cover. judged: the last DeepSpeed commit that was judged."""

    releases: tuple[Version, ...]
    judged: str
    rows: tuple[Row, ...]


class TableError(ValueError):
    """The table has an invalid line; the message says which and why."""


def url(link: str) -> str:
    """The URL of "pull/1", "issues/1", "commit/0a1b" (DeepSpeed's), "owner/name/pull/1"; "" for any other key."""
    if link.startswith("https:"):
        return link
    kind = link.split("/")[-2] if "/" in link else ""
    if kind not in ("pull", "issues", "commit"):
        return ""
    return f"https://github.com/{link if link.count('/') == 3 else f'{_HOME}/{link}'}"


@functools.cache
def load() -> Table:
    """The table of this dsfix. Raises TableError."""
    return parse(PATH.read_text(encoding="utf-8"))


def parse(text: str) -> Table:
    """Raises TableError."""
    head = dict(re.findall(r"(?m)^# (\w+): (.*)$", text))
    try:
        releases = tuple(Version(word) for word in head["releases"].split())
        judged = head["judged"]
    except (KeyError, ValueError) as error:
        raise TableError(f"the head of the table lacks a valid {error}") from None
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    if tuple(rows[:1]) != ("\t".join(COLUMNS),):
        raise TableError(f"the first row does not name the columns {', '.join(COLUMNS)}")
    return Table(releases, judged, tuple(_row(row) for row in rows[1:]))


def _row(line: str) -> Row:
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise TableError(f"{len(cells)} cells for {len(COLUMNS)} columns: {line[:80]!r}")
    cell = dict(zip(COLUMNS, cells))
    try:
        return Row(
            key=cell["key"],
            first=Version(cell["first"].lstrip("~")),
            last=Version(cell["last"].lstrip("~")) if cell["last"] else None,
            about="~" in cell["first"] + cell["last"],
            severity=_one_of(SEVERITIES, cell["severity"]),
            weight=int(_one_of("12345", cell["weight"])),
            area=_one_of(AREAS, cell["area"]),
            bug=cell["bug"],
            states=tuple(_state(word) for word in cell["state"].split("; ") if word),
            links=tuple(cell["links"].split()),
        )
    except ValueError as error:
        raise TableError(f"{cell['key']}: {error}") from None


def _state(text: str) -> tuple[str, str]:
    kind, _, what = text.partition(":")
    if not what.strip():
        raise ValueError(f"the state {text!r} lacks a name or a reason")
    return _one_of((*BY_NAME, *BY_REASON), kind), what.strip()


def _one_of(allowed: Sequence[str], value: str) -> str:
    if value not in allowed or not value:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return value


class UnknownRelease(LookupError):
    """The table has no such release; the message says so in one sentence."""


def release_named(text: str, table: Table) -> Version:
    """The release that a user named. Raises UnknownRelease."""
    version = _within(text, table)
    if version > table.releases[-1]:
        raise UnknownRelease(
            f"deepspeed {version} is newer than {table.releases[-1]}, the newest that this dsfix knows"
        )
    if version not in table.releases:
        before = [release for release in table.releases if release < version][-1]
        raise UnknownRelease(f"deepspeed {version} is not a release; the one before it is {before}")
    return table.releases[table.releases.index(version)]


def installed_release(text: str, table: Table) -> tuple[Version, str]:
    """The installed version, which may be a development build, and a remark about it. Raises UnknownRelease."""
    version = _within(text, table)
    if version > table.releases[-1]:
        return version, f"newer than {table.releases[-1]}, the newest release in this table"
    if version.local or version not in table.releases:
        return version, "not a release: judged by its version number only"
    return version, ""


def _within(text: str, table: Table) -> Version:
    try:
        version = Version(text)
    except InvalidVersion:
        what = f"{text!r} is not a version of DeepSpeed" if text else "the installed DeepSpeed has no readable version"
        raise UnknownRelease(f"{what}, such as {table.releases[-1]}") from None
    if version < table.releases[0]:
        raise UnknownRelease(f"deepspeed {text} is older than {table.releases[0]}, the first that dsfix knows")
    return version
