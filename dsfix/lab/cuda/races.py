"""Races that the emulated device has seen: uses of the same bytes on two streams that nothing orders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OWN = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SHOWN = 4  # frames


@dataclass(frozen=True)
class Use:
    """what: operator, argument and tensor; stream: its number, 0 for the default stream, below 0 for a process group's;
    node: the node of the backward pass, or ""; stack: (file, line, function), innermost first."""

    what: str
    writes: bool
    stream: int
    node: str
    stack: Sequence[tuple[str, int, str]]

    def __str__(self) -> str:
        where = "the default stream" if self.stream == 0 else f"stream {self.stream}"
        if self.stream < 0:
            where = f"the stream of process group {-self.stream}"
        frames = [f"{file}:{line} in {function}" for file, line, function in self.stack if _concerns(file)][:_SHOWN]
        place = "\n".join(f"      {frame}" for frame in frames) or "      (the backward pass, without Python frames)"
        node = f", {self.node}" if self.node else ""
        return f"{'write' if self.writes else 'read'} by {self.what} on {where}{node}\n{place}"


@dataclass(frozen=True)
class Race:
    """Two uses of the same bytes in the order in which they were issued, at least one of them a write."""

    before: Use
    after: Use

    def __str__(self) -> str:
        return (
            f"race: {self.before}\n    and {self.after}\n"
            "    Nothing makes the second wait for the first: no event, wait_stream or wait() of the work, "
            "no record_stream before the memory was freed."
        )


def races_of(found: Sequence[Mapping[str, Any]]) -> list[Race]:
    """What the native module reports, without pairs that differ in nothing that is shown."""
    return list(dict.fromkeys(Race(_use(each["before"]), _use(each["after"])) for each in found))


def _use(found: Mapping[str, Any]) -> Use:
    return Use(**{**found, "stack": tuple(map(tuple, found["stack"]))})


def _concerns(file: str) -> bool:
    """Whether a frame says something about the job: not one of torch's own, nor of the lab."""
    return f"{os.sep}torch{os.sep}" not in file and not file.startswith(_OWN)
