"""The known bugs of a release, and how dsfix handles each: for `list --upstream`, `find` and `show`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from ... import survey
from ...catalogue import registry
from ...known_bugs import coverage, table
from ...known_bugs.coverage import Bug, CoverageState, Status
from ..exits import OK
from . import output

_WORDS = {CoverageState.UNSAFE: "unsafe", CoverageState.IN_PART: "in part"}
Details = tuple[list[str], list[tuple[str, str]]]
"""Paragraphs, and rows of a name and a text."""
_Found = Sequence[tuple[Bug, Status]]


def run(release: Version, heading: str, options: argparse.Namespace) -> int:
    known = coverage.bugs(table.load(), registry.catalogue())
    severities = options.severity or table.SEVERITIES
    affected = [(bug, bug.on(release)) for bug in known if bug.row.has(release) and bug.row.severity in severities]
    if options.json:
        counts = Counter(answer.state for _, answer in affected)
        by_state = {each.value: counts[each] for each in CoverageState}
        payload = {"counts": by_state, "bugs": [as_json(*each) for each in affected]}
        output.print_json({"distributions": survey.distributions(), "deepspeed": str(release), "upstream": payload})
        return OK
    output.print_paragraph(heading)
    output.print_paragraph(summary(affected))
    if options.verbose:
        rows = [
            (
                bug_name(bug),
                _WORDS.get(answer.state, answer.state.value),
                f"{bug.row.severity}: {bug.row.bug}\n{_reason(answer)}".strip(),
            )
            for bug, answer in affected
        ]
        output.print_table(("upstream", "dsfix", "what"), rows)
    else:
        output.print_grouped(
            [
                (bug.row.severity, *line)
                for bug, answer in affected
                if answer.state is not CoverageState.PATCHED
                for line in lines(bug, answer)
            ]
        )
        print()
        output.print_paragraph(
            "Patched bugs are omitted; `--verbose` lists all, with reasons. `python -m dsfix show ID` explains a bug."
        )
    return OK


def summary(found: _Found) -> str:
    """One phrase: "61 known bugs: 52 patched, 7 diagnosed, 2 open"."""
    counts = Counter(answer.state for _, answer in found)
    total = sum(number for state, number in counts.items() if state not in coverage.NOT_COUNTED)
    main = ", ".join(_counted(counts, [each for each in CoverageState if each not in coverage.NOT_COUNTED]))
    besides = ", ".join(_counted(counts, coverage.NOT_COUNTED))
    return f"{total} known bug{'s' * (total != 1)}{main and ': '}{main}{besides and '; not counted: '}{besides}"


def _counted(counts: Mapping[CoverageState, int], states: Sequence[CoverageState]) -> list[str]:
    return [f"{counts[state]} {state.value}" for state in states if counts[state]]


def as_json(bug: Bug, answer: Status) -> dict[str, Any]:
    return {
        "key": bug.row.key,
        "links": bug.row.urls,
        "severity": bug.row.severity,
        "area": bug.row.area,
        "bug": bug.row.bug,
        "first": str(bug.row.first),
        "last": str(bug.row.last) if bug.row.last else None,
        "about": bug.row.about,
        "state": answer.state.value,
        "by": answer.by,
        "why": answer.why,
    }


def lines(bug: Bug, answer: Status) -> list[tuple[str, str]]:
    """Name and title of each patch for the bug; of the bug itself, if dsfix does not fix all of it."""
    patches = [each.partition(" ")[2] for each in answer.by if each.startswith("patch ")]
    if answer.state is CoverageState.PATCHED:
        return [(each, registry.catalogue()[each].patch.title) for each in patches]
    name = patches[0] if patches else bug_name(bug)
    return [(name, f"{_WORDS.get(answer.state, answer.state.value)}: {bug.row.bug}")]


def detail_rows(bug: Bug, answer: Status) -> Details:
    """What the table says about a bug, for `show`."""
    row, reason = bug.row, _reason(answer)
    facts = {
        "dsfix": f"{answer.state.value}{': ' if reason else ''}{reason}",
        "severity": row.severity,
        "affects": f"deepspeed {row.first} to {row.last or 'the newest'}{', about' if row.about else ''}",
    }
    return [f"{bug_name(bug)}: {row.bug}"], [
        *((f"{name}:", text) for name, text in facts.items()),
        *(("" if place else "upstream:", link) for place, link in enumerate(row.urls)),
    ]


def lookup(text: str) -> list[Bug]:
    """The known bugs with this `number`, or that this upstream number or URL is about."""
    link, entries = survey.reference(text), registry.catalogue()

    def about(bug: Bug) -> bool:
        links = (*bug.row.urls, *(each for cover in bug.covers for each in entries[cover.id].patch.upstream))
        return bug_name(bug) == text.lower() or (link != "" and link in map(survey.reference, links))

    return [bug for bug in coverage.bugs(table.load(), entries) if about(bug)]


def bug_name(bug: Bug) -> str:
    """ "#1" for DeepSpeed, "owner/name#1", the beginning of a commit's hash; a name if it is not known upstream."""
    where, _, name = bug.row.key.rpartition("/")
    kind = where.rpartition("/")[2]
    if kind in ("pull", "issues"):
        return f"{where.rpartition('/')[0]}#{name}".lower()
    return name[:9] if kind == "commit" else name


def _reason(answer: Status) -> str:
    by = ", ".join(answer.by)
    return f"{by}{': ' if by and answer.why else ''}{answer.why}"
