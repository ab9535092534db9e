"""What `explain` says of its findings, as text and as JSON."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from ...engine import survey
from ...explain.cures import cures
from ...explain.ranking import Ranked, Standing
from ...explain.recognise import File, Reading
from . import output

_HEADINGS = {
    Standing.CAUSE: "Most likely cause",
    Standing.LATER: "Later in the log",
    Standing.FOLLOW_UP: "Follows from it",
    Standing.NOTE: "Beside it",
}
_UNSEEN_CAUSE = "Follows from an error that is not recognised here"
_UNKNOWN = "an error that is not known here"
_LINKS = 2
_SOURCES = 8  # ranks that are named
_WIDTH = 120


def print_findings(reading: Reading, findings: Sequence[Ranked]) -> None:
    print(f"here: {survey.heading()}")
    if named := reading.versions.as_dict():
        print("the log names: " + ", ".join(f"{name} {version}" for name, version in named.items()))
    for standing, group in groupby(findings, key=lambda each: each.standing):
        heading = _HEADINGS[standing]
        if standing is Standing.FOLLOW_UP and findings[0].standing is Standing.FOLLOW_UP:
            heading = _UNSEEN_CAUSE
        print(f"\n{heading}")
        for each in group:
            print()
            _print(each, reading)


def _print(finding: Ranked, reading: Reading) -> None:
    fault = finding.found.fault
    print(f"  {fault.id}: {fault.title}" if fault else f"  {_UNKNOWN}")
    rows = [("seen", _seen(finding, reading.files)), ("", output.printable(finding.first.text.strip()))]
    if fault:
        rows += [
            ("what", fault.what),
            ("releases", "; or ".join(dict.fromkeys(_ranges(each) for each in fault.affects))),
            *(("dsfix", cure.sentence()) for cure in cures(finding.found.patches, reading.versions.as_dict())),
            ("else" if finding.found.patches else "remedy", fault.remedy),
            *(("see", link) for link in fault.evidence[:_LINKS]),
        ]
    for name, text in rows:
        for number, line in enumerate(_wrapped(text)):
            print(f"    {name if not number else '':<9} {line}")


def _seen(finding: Ranked, files: Sequence[File]) -> str:
    found, first = finding.found, finding.first
    times = "once" if found.count == 1 else f"{found.count} times"
    sources = sorted(found.sources, key=lambda name: (not name.isdecimal(), len(name), name))
    where = ""
    if sources:
        named = ", ".join(sources[:_SOURCES]) + f" and {len(sources) - _SOURCES} more" * (len(sources) > _SOURCES)
        kind = "rank" if all(name.isdecimal() for name in sources) else "process"
        plural = "" if len(sources) == 1 else "s" if kind == "rank" else "es"
        where = f" on {kind}{plural} {named}"
    elif len(found.first) > 1:
        where = f" in {len(found.first)} files"
    return f"{times}{where}, first in {_shown(files[first.file])}, line {first.line}:"


def _ranges(affects: Any) -> str:
    return ", ".join(f"{name} {specifiers}" for name, specifiers in affects.items())


def _wrapped(text: str) -> Iterator[str]:
    if text:
        terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
        width = shutil.get_terminal_size().columns if terminal else _WIDTH
        yield from textwrap.wrap(text, max(40, width - 14), break_long_words=False, break_on_hyphens=False)


def _shown(file: File) -> str:
    return "standard input" if file.name == "-" else output.printable(file.name)


def nothing(files: Sequence[File]) -> str:
    """Says that nothing was recognised, and what to do."""
    lines = sum(file.lines for file in files)
    return (
        f"Nothing is recognised in the {lines} lines of {', '.join(map(_shown, files))}. "
        "`python -m dsfix doctor` looks at the environment, `python -m dsfix check` at a DeepSpeed config."
    )


def complaint(file: File) -> str | None:
    """What is wrong with a file, as a sentence."""
    if file.trouble and file.lines:
        return f"{_shown(file)}: read up to line {file.lines}, no further: {file.trouble}"
    if file.trouble:
        return f"{_shown(file)} cannot be read: {file.trouble}"
    return None if file.size else f"{_shown(file)} is empty"


def as_json(reading: Reading, findings: Sequence[Ranked]) -> dict[str, Any]:
    return {
        "distributions": survey.distributions(),
        "log_versions": reading.versions.as_dict(),
        "files": [
            {"name": file.name, "lines": file.lines, "bytes": file.size, "trouble": complaint(file)}
            for file in reading.files
        ],
        "findings": [_json(each, reading) for each in findings],
    }


def _json(finding: Ranked, reading: Reading) -> dict[str, Any]:
    found, fault, first = finding.found, finding.found.fault, finding.first
    return {
        "id": fault.id if fault else None,
        "standing": finding.standing.value,
        "title": fault.title if fault else _UNKNOWN,
        "what": fault.what if fault else "",
        "affects": [dict(each) for each in fault.affects] if fault else [],
        "patches": [cure.as_json() for cure in cures(found.patches, reading.versions.as_dict())],
        "remedy": fault.remedy if fault else "",
        "evidence": list(fault.evidence) if fault else [],
        "count": found.count,
        "processes": sorted(found.sources),
        "files": len(found.first),
        "first": {"file": reading.files[first.file].name, "line": first.line, "text": first.text},
    }
