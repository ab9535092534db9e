"""The record, record.txt: a line for each part and release, its fields divided by tabs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from dsfix.cli.exits import CommandError
from dsfix.settings import write_atomically

PATH = Path(__file__).with_name("record.txt")
AGREES, PATCHED, DIFFERS, ABSENT = "agrees", "patched", "differs", "absent"


@dataclass(frozen=True)
class Line:
    """What a part showed on a release.

    digest: of the file with the part. patches: those without which it differs, where it agrees with dsfix. seen: the
    shortest example that differs, or why there is none.
    """

    part: str
    release: str
    digest: str
    outcome: str
    patches: tuple[str, ...] = ()
    seen: str = ""

    def __str__(self) -> str:
        outcome = f"{self.outcome}:{','.join(self.patches)}" if self.patches else self.outcome
        return "\t".join(filter(None, (self.part, self.release, self.digest, outcome, self.seen)))


Record = dict[tuple[str, str], Line]


def load(path: Path = PATH) -> Record:
    """The lines by part and release. Raises CommandError if the file is damaged."""
    found: Record = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), 1):
        words = text.split("\t")
        outcome, _, patches = words[3].partition(":") if len(words) > 3 else ("", "", "")
        if outcome not in (AGREES, PATCHED, DIFFERS, ABSENT):
            raise CommandError(f"{path}, line {number} is not a line of the record: remove it")
        given = tuple(filter(None, patches.split(",")))
        line = Line(words[0], words[1], words[2], outcome, given, "".join(words[4:]))
        found[line.part, line.release] = line
    return found


def save(record: Mapping[tuple[str, str], Line], path: Path = PATH) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in ordered(record.values())).encode())


def ordered(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (line.part, Version(line.release)))
