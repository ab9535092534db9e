"""The page of the site, from the record and the explanations; and what is missing in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from matrix import table
from matrix.parts import explanations
from matrix.parts.explanations import EXPLANATIONS, Explanation
from matrix.parts.part import Part, digest, load
from matrix.parts.record import ABSENT, AGREES, DIFFERS, PATCHED, Line, Record

COMMAND = "python -m tox run -e parts"


def releases() -> list[str]:
    """The last of each minor."""
    last = {each.version.release[:2]: each.deepspeed for each in table.load().releases}
    return list(last.values())


def stale(record: Record, part: Part, release: str) -> bool:
    line = record.get((part.name, release))
    return line is None or line.digest != digest(part.area)


def faults(
    record: Record,
    parts: Sequence[Part],
    names: Sequence[str],
    given: Sequence[Explanation] = EXPLANATIONS,
) -> Iterator[str]:
    """One sentence for each part that was not run on one of the releases, and each that differs unexplained."""
    for release in names:
        for part in parts:
            if part.check is None:
                continue
            if stale(record, part, release):
                yield f"{part.name} was not run on {release}: `{COMMAND} -- run {release}` runs it"
                continue
            line = record[part.name, release]
            if line.outcome == DIFFERS and explanations.of(line, given) is None:
                yield f"{line.part} differs on {line.release}, {line.seen}: not explained"
            if line.outcome == PATCHED and not line.patches:
                yield f"{line.part} agrees on {line.release} with dsfix only, and no patch is the cause"


def unused(record: Record, given: Sequence[Explanation] = EXPLANATIONS) -> Iterator[str]:
    for one in given:
        if not any(line.outcome == DIFFERS and one.explains(line) for line in record.values()):
            yield f"an explanation of {one.part} explains nothing"
