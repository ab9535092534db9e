"""`list --upstream`: the known bugs of a release, and what dsfix has for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from ...catalogue.registry import Entry
from ...upstream import coverage, table
from ...upstream.coverage import Answer, Bug, CoverageState
from . import output

_STYLES = {
    CoverageState.PATCHED: "green",
    CoverageState.IN_PART: "yellow",
    CoverageState.OPTIONAL: "yellow",
    CoverageState.DIAGNOSED: "cyan",
}
_WORDS = {CoverageState.NOBODY: "nobody", CoverageState.UNSAFE: "unsafe", CoverageState.IN_PART: "in part"}
_Found = Sequence[tuple[Bug, Answer]]


def of(release: Version, entries: Mapping[str, Entry]) -> list[tuple[Bug, Answer]]:
    """The known bugs of the release, worst first."""
    known = coverage.bugs(table.load(), entries)
    return [(bug, bug.on(release)) for bug in known if bug.row.has(release)]


def summary(found: _Found) -> str:
    """One phrase: "61 known bugs: 52 patched, 7 diagnosed, 2 open"."""
    counts = Counter(answer.state for _, answer in found)
    total = sum(number for state, number in counts.items() if state not in coverage.APART)
    told = ", ".join(_counted(counts, [each for each in CoverageState if each not in coverage.APART]))
    besides = ", ".join(_counted(counts, coverage.APART))
    return f"{total} known bug{'s' * (total != 1)}{told and ': '}{told}{besides and '; besides, '}{besides}"


def _counted(counts: Mapping[CoverageState, int], states: Sequence[CoverageState]) -> list[str]:
    return [f"{counts[each]} {each.value}" for each in states if counts[each]]


def as_json(found: _Found) -> dict[str, Any]:
    counts = Counter(answer.state for _, answer in found)
    return {
        "counts": {each.value: counts[each] for each in CoverageState},
        "bugs": [
            {
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
            for bug, answer in found
        ],
    }


def show(found: _Found, everything: bool, command: str) -> None:
    """Prints the rows; command: the one that lists the patched ones, too."""
    listed = [each for each in found if everything or each[1].state is not CoverageState.PATCHED]
    rows = [
        ((_number(bug), _WORDS.get(answer.state, answer.state.value), _what(bug, answer)), _style(answer.state))
        for bug, answer in listed
    ]
    if rows:
        output.print_table(("upstream", "dsfix", "what"), rows)
    if len(listed) < len(found):
        print(f"{len(found) - len(listed)} patched: `{command} --all` shows them.")


def _number(bug: Bug) -> str:
    """ "#1" for an issue or pull request of DeepSpeed's, a commit's hash, "-" for others."""
    kind, _, name = bug.row.key.partition("/")
    if kind in ("pull", "issues"):
        return f"#{name}"
    return name[:9] if kind == "commit" else "-"


def _what(bug: Bug, answer: Answer) -> str:
    lines = [f"{bug.row.severity}: {bug.row.bug}"]
    by = ", ".join(answer.by)
    if by or answer.why:
        lines.append(f"{by}{': ' if by and answer.why else ''}{answer.why}")
    return "\n".join(lines)


def _style(state: CoverageState) -> str:
    return _STYLES.get(state, "red" if state is CoverageState.OPEN else "dim")
