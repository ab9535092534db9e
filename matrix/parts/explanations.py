"""Hand-written explanations of what differs and no patch changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dsfix.versions import satisfies
from matrix.parts.record import Line

MEANING = "documented"  # or refused with a message
DIAGNOSIS = "diagnosis"  # a bug that no patch can fix
OPEN = "open"  # a bug without a patch so far


@dataclass(frozen=True)
class Explanation:
    """Explains what `part`, a name, shows on `releases`. seen: a regular expression that is searched in it."""

    part: str
    kind: str
    text: str
    releases: str = ""
    seen: str = ""

    def explains(self, line: Line) -> bool:
        fits = self.part == line.part and satisfies(self.releases, line.release)
        return fits and re.search(self.seen, line.seen) is not None


EXPLANATIONS: tuple[Explanation, ...] = ()


def of(line: Line, explanations: Sequence[Explanation] = EXPLANATIONS) -> Explanation | None:
    return next((each for each in explanations if each.explains(line)), None)
