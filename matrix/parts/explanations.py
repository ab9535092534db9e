"""Explanations of what differs and no patch changes so far: explanations.txt, a line each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.parts.record import Line


@dataclass(frozen=True)
class Explanation:
    """Explains what `part`, a name, shows. seen: a regular expression that is searched in it."""

    part: str
    seen: str
    text: str

    def explains(self, line: Line) -> bool:
        return self.part == line.part and re.search(self.seen, line.seen) is not None


_WRITTEN = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
EXPLANATIONS = tuple(Explanation(*line.split("\t")) for line in _WRITTEN.splitlines())


def of(line: Line, explanations: Sequence[Explanation] = EXPLANATIONS) -> Explanation | None:
    return next((each for each in explanations if each.explains(line)), None)
