"""The page of the site, from the record and the explanations; and what is missing in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from matrix import table
from matrix.parts import explanations
from matrix.parts.explanations import EXPLANATIONS, Explanation
from matrix.parts.part import Part, digest, load
from matrix.parts.record import DIFFERS, PATCHED, Line, Record

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


_HEAD = f"""# The parts

What DeepSpeed offers to scripts, each part compared with its reference on generated input: shapes, dtypes, layouts,
options, ignored labels. Each was run on the last release of each minor, without dsfix and with it.

    {COMMAND} -- run 0.19.8

runs what is not in the record yet. "Patched" means that the part agrees with dsfix, and differs without the patches
that are named; "open" that it differs with dsfix, too, and that the cause is known; "absent" that the release does not
have it. Where the cause is not known ("differs"), the shortest example is shown.
"""


def render(record: Record, given: Sequence[Explanation] = EXPLANATIONS) -> str:
    names = releases()
    lines, parts = [_HEAD], load().values()
    for area in dict.fromkeys(each.area for each in parts if each.check):
        rows = [f"## {area}", "", f"| part | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
        references: dict[str, list[str]] = {}
        notes: list[str] = []
        for part in parts:
            if part.area != area or part.check is None:
                continue
            cells = [_cell(record.get((part.name, name)), given) for name in names]
            rows.append(f"| {_short(part)} | {' | '.join(cells)} |")
            references.setdefault(part.reference, []).append(_short(part))
            notes += _notes(part, record, names, given)
        named = [f"- {', '.join(those)}: {_escaped(reference)}" for reference, those in references.items()]
        lines += [*rows, "", "References:", "", *named, ""]
        lines += ["What differs:", "", *notes, ""] if notes else []
    lines += ["## No reference", "", *(f"- {each.name}: {each.reference}" for each in parts if each.check is None)]
    return "\n".join(lines) + "\n"


def _cell(line: Line | None, given: Sequence[Explanation]) -> str:
    if line is None:
        return "not run"
    explained = explanations.of(line, given) if line.outcome == DIFFERS else None
    return line.outcome if explained is None else "open"


def _short(part: Part) -> str:
    return _escaped(part.name.removeprefix(f"{part.area}/"))


def _notes(part: Part, record: Record, names: Sequence[str], given: Sequence[Explanation]) -> Iterator[str]:
    """What differs, newest release first, each text once."""
    told: dict[str, list[str]] = {}
    for line in [record[part.name, name] for name in reversed(names) if (part.name, name) in record]:
        if line.outcome == PATCHED:
            patches = ", ".join(f"[{each}](../bugs/{each}.md)" for each in line.patches)
            told.setdefault(f"patched by {patches}", []).append(line.release)
        elif line.outcome == DIFFERS:
            explained = explanations.of(line, given)
            told.setdefault(explained.text if explained else f"differs: {_escaped(line.seen)}", []).append(line.release)
    yield from (f"- {_short(part)} ({table.span(those, names)}): {text}" for text, those in told.items())


def _escaped(text: str) -> str:
    text = re.sub(r"https?://\S+", lambda link: link[0] if "|" in link[0] else f"<{link[0]}>", text)
    return re.sub(r"(?<!<)\b0x[0-9a-f]+", "…", text).replace("|", "\\|").replace("`", "'")
