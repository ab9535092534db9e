"""The findings of `explain` as text and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ... import survey
from ...explain.fixes import fixes
from ...explain.mentions import Versions
from ...explain.problems import Problem, examined_from
from ...explain.ranking import FindingRole, RankedFinding
from ...explain.recognise import LogFile, LogReading
from ...explain.signature import Role
from ...outcome import shortened_list
from . import output

_HEADINGS = {
    FindingRole.CAUSE: "Most likely cause",
    FindingRole.LATER: "Later in the log",
    FindingRole.POSSIBLE: "This message has several possible causes",
    FindingRole.FOLLOW_UP: "Consequence",
    FindingRole.NOTE: "Also seen",
    FindingRole.EXCLUDED: "Same message, but the release in the log does not have this bug",
}
_UNSEEN_CAUSE = "Consequence of an unrecognised error"
_UNKNOWN = "unknown error"
_OF_UNKNOWN: dict[str, Any] = {
    **{"id": None, "title": _UNKNOWN, "remedy": ""},
    **{"affects": [], "patches": [], "evidence": []},
}
_LINKS = 2
_SOURCES = 8  # ranks to list


def print_findings(reading: LogReading, findings: Sequence[RankedFinding]) -> None:
    print(f"here: {survey.versions_line()}")
    if named := reading.versions.described():
        print(f"in the log: {named}")
    for role, group in groupby(findings, key=lambda each: each.role):
        heading = _HEADINGS[role]
        if role is FindingRole.FOLLOW_UP and findings[0].role is FindingRole.FOLLOW_UP:
            heading = _UNSEEN_CAUSE
        print(f"\n{heading}")
        for each in group:
            print()
            _print(each, reading)


def _print(finding: RankedFinding, reading: LogReading) -> None:
    problem = finding.recognised.problem
    print(f"  {problem.id}: {problem.title}" if problem else f"  {_UNKNOWN}")
    rows = [("seen", _seen(finding, reading.files)), ("", output.printable(finding.first.text.strip()))]
    if finding.recognised.where:
        rows.append(("where", output.printable(finding.recognised.where)))
    if problem:
        rows += _about(problem, finding.recognised.patches, reading.versions)
    output.print_rows(rows, 10, "    ")


def _about(problem: Problem, patches: Collection[str], named: Versions) -> list[tuple[str, str]]:
    everywhere = problem.everywhere or "deepspeed" in named.as_dict()
    hides = " (this removes the message, not its cause)" if problem.role is Role.FOLLOW_UP else ""
    return [
        ("what", problem.what),
        ("releases" if everywhere else "only if", _ranges(problem.affects)),
        *(("dsfix", fix.sentence() + hides) for fix in fixes(patches, named.alternatives())),
        ("else" if patches else "remedy", problem.remedy),
        *(("see", link) for link in problem.evidence[:_LINKS]),
    ]


def _ranges(affects: Iterable[Mapping[str, str]]) -> str:
    """The ranges, or nothing if one of them is unbounded."""
    each = (", ".join(f"{name} {specifiers}" for name, specifiers in examined_from(one).items()) for one in affects)
    shown = list(dict.fromkeys(each))
    return "; or ".join(shown) if all(shown) else ""


def _seen(finding: RankedFinding, files: Sequence[LogFile]) -> str:
    recognised, first = finding.recognised, finding.first
    times = "once" if recognised.count == 1 else f"{recognised.count} times"
    sources = sorted(recognised.sources, key=lambda name: (not name.isdecimal(), len(name), name))
    where = ""
    if sources:
        named = shortened_list(sources, _SOURCES)
        kind = "rank" if all(name.isdecimal() for name in sources) else "process"
        plural = "" if len(sources) == 1 else "s" if kind == "rank" else "es"
        where = f" on {kind}{plural} {named}"
    elif len(recognised.first) > 1:
        where = f" in {len(recognised.first)} files"
    return f"{times}{where}, first in {_shown(files[first.file])}, line {first.line}:"


def _shown(file: LogFile) -> str:
    return "standard input" if file.name == "-" else output.printable(file.name)


def nothing_found_message(files: Sequence[LogFile]) -> str:
    lines = sum(file.lines for file in files)
    return (
        f"No known error in {', '.join(map(_shown, files))} ({lines} line{'s' * (lines != 1)}). Pass the error message "
        "with its traceback, or the whole log."
    )


def complaint(file: LogFile) -> str | None:
    if file.trouble and file.lines:
        return f"{_shown(file)}: read up to line {file.lines}: {file.trouble}"
    if file.trouble:
        return f"{_shown(file)} cannot be read: {file.trouble}"
    return None if file.size else f"{_shown(file)} is empty"


def as_json(reading: LogReading, findings: Sequence[RankedFinding]) -> dict[str, Any]:
    return {
        "distributions": survey.distributions(),
        "log_versions": reading.versions.as_dict(),
        "files": [
            {"name": file.name, "lines": file.lines, "bytes": file.size, "trouble": complaint(file)}
            for file in reading.files
        ],
        "findings": [_json(finding, reading) for finding in findings],
    }


def _json(finding: RankedFinding, reading: LogReading) -> dict[str, Any]:
    recognised, problem, first = finding.recognised, finding.recognised.problem, finding.first
    return {
        **(
            _problem(problem, recognised.patches, reading.versions)
            if problem
            else dict(_OF_UNKNOWN, what=recognised.where)
        ),
        "role": finding.role.value,
        "count": recognised.count,
        "processes": sorted(recognised.sources),
        "files": len(recognised.first),
        "first": {"file": reading.files[first.file].name, "line": first.line, "text": first.text},
    }


def _problem(problem: Problem, patches: Collection[str], log: Versions) -> dict[str, Any]:
    """patches: those that the log shows."""
    return {
        "id": problem.id,
        "title": problem.title,
        "what": problem.what,
        "affects": [dict(affect) for affect in problem.affects],
        "patches": [fix.as_json() for fix in fixes(patches, log.alternatives())],
        "remedy": problem.remedy,
        "evidence": list(problem.evidence),
    }
