"""build/pages/upstream.md: the known bugs of DeepSpeed's releases, and what dsfix has for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from packaging.version import Version

from dsfix.upstream import coverage, table
from dsfix.upstream.coverage import Answer, Bug, CoverageState
from matrix.table import span

from . import text
from .evidence import Evidence

_HEAD = """\
# Which bugs does my DeepSpeed have?

Written by `python -m tox run -e pages` from `dsfix/upstream/table.tsv` and what the patches declare; edit those.

{total} bugs of DeepSpeed {first} to {last} are known here: those that upstream has fixed up to commit `{judged}`, those
that are reported or proposed there, and those that dsfix's patches found. They are bugs of Python code; what is wrong
in kernels is not counted. `python -m dsfix list --upstream` says it for the installed release.

- [By release](#by-release): how many a release has
- [By area](#by-area): the bugs, worst first

| state | bugs | |
| --- | --- | --- |
{states}
A range with "about" is a guess from the history; the others were read in the source, and those of patches were run:
[the matrix](matrix/index.html).

## By release

Without what nobody can meet or has confirmed. "In part": on this release, or off by default. "Open": dsfix has nothing,
because nobody has written it or because no change is safe. "Wrong results": without a message, all and the open ones.

"""
_MEANINGS = {
    CoverageState.PATCHED: "on each release that has the bug",
    CoverageState.IN_PART: "a patch for some of its releases, or for a part of the bug",
    CoverageState.OPTIONAL: "a patch that can harm other jobs: `DSFIX_ONLY` enables it",
    CoverageState.DIAGNOSED: "`explain`, `check` or `doctor` names it and what helps",
    CoverageState.UNSAFE: "no change at run time is safe; the reason is with the bug",
    CoverageState.OUTSIDE: "a bug of inference, which dsfix leaves alone",
    CoverageState.NOBODY: "no job can meet it; the reason is with the bug",
    CoverageState.UNCONFIRMED: "reported, but seen by nobody here",
    CoverageState.OPEN: "nothing so far",
}
_COUNTED = ("bugs", "patched", "in part", "diagnosed", "open", "wrong results")
_TITLES = {
    "engine": "Engine",
    "precision": "Precision, and ZeRO off",
    "zero-1/2": "ZeRO-1 and ZeRO-2",
    "zero-3": "ZeRO-3",
    "offload": "Offload",
    "zero++": "ZeRO++ and MiCS",
    "pipeline": "Pipeline parallelism",
    "moe": "Mixture of experts",
    "sequence": "Sequence parallelism and tiling",
    "tensor-parallel": "Tensor parallelism",
    "optimizer": "Optimizers",
    "scheduler": "Learning rate schedulers",
    "checkpoint": "Checkpoints",
    "compile": "torch.compile and DeepCompile",
    "inference": "Inference",
    "data": "Data",
    "launcher": "Launchers and autotuning",
    "profiler": "Profilers and logs",
    "import": "Import and installation",
}


def render(evidence: Evidence) -> str:
    """The page's Markdown."""
    known = table.load()
    bugs = coverage.bugs(known, {entry.id: entry for entry in evidence.entries})
    overall = {bug.row.key: bug.overall(known.releases) for bug in bugs}
    counts = Counter(overall.values())
    states = "".join(
        f"| {each.value} | {counts[each]} | {_MEANINGS[each]} |\n" for each in CoverageState if counts[each]
    )
    first, last = known.releases[0], known.releases[-1]
    head = _HEAD.format(total=len(bugs), first=first, last=last, judged=known.judged, states=states)
    areas = [(area, [bug for bug in bugs if bug.row.area == area]) for area in table.AREAS]
    listed = "".join(_area(area, own, known.releases) for area, own in areas if own)
    rows = [
        [f"[{_TITLES[area]}](#{_anchor(_TITLES[area])})", *_counted([(bug, overall[bug.row.key]) for bug in own])]
        for area, own in areas
        if own
    ]
    contents = text.table(("area", *_COUNTED), rows)
    return head + _releases(bugs, known.releases) + f"\n## By area\n\n{contents}" + listed


def _releases(bugs: Sequence[Bug], releases: Sequence[Version]) -> str:
    rows = [
        [str(release), *_counted([(bug, bug.on(release).state) for bug in bugs if bug.row.has(release)])]
        for release in reversed(releases)
    ]
    return text.table(("release", *_COUNTED), rows)


def _counted(found: Sequence[tuple[Bug, CoverageState]]) -> list[str]:
    """The cells of _COUNTED."""
    counted = [(bug, state) for bug, state in found if state not in coverage.APART]
    counts = Counter(state for _, state in counted)
    numbers = (
        len(counted),
        counts[CoverageState.PATCHED],
        counts[CoverageState.IN_PART] + counts[CoverageState.OPTIONAL],
        counts[CoverageState.DIAGNOSED],
        counts[CoverageState.OPEN] + counts[CoverageState.UNSAFE],
    )
    wrong = [state for bug, state in counted if bug.row.severity == "wrong-result"]
    still = sum(each in (CoverageState.OPEN, CoverageState.UNSAFE) for each in wrong)
    return [*map(str, numbers), f"{len(wrong)}, {still} open"]


def _area(area: str, bugs: Sequence[Bug], releases: Sequence[Version]) -> str:
    lines = [f"- {_bug(bug, releases)}\n" for bug in bugs]
    return f"\n### {_TITLES[area]}\n\n{''.join(lines)}"


def _bug(bug: Bug, releases: Sequence[Version]) -> str:
    row = bug.row
    link = f" [{text.short_link(row.urls[0])}]({row.urls[0]})" if row.urls else ""
    return f"{text.escape(row.bug)} · {row.severity} · {_range(bug, releases)}{link} · {_state(bug, releases)}"


def _range(bug: Bug, releases: Sequence[Version]) -> str:
    first, last = bug.row.first, bug.row.last or releases[-1]
    told = str(first) if first == last else f"{first} to {last}"
    return f"about {told}" if bug.row.about else told


def _state(bug: Bug, releases: Sequence[Version]) -> str:
    """What dsfix has, and on which of the bug's releases, if not the same on all."""
    found = {str(each): bug.on(each) for each in bug.affected(releases)}
    if all(answer.state is CoverageState.PATCHED for answer in found.values()):
        return f"patched by {', '.join(dict.fromkeys(_by(each) for answer in found.values() for each in answer.by))}"
    told: dict[str, list[str]] = {}
    for release, answer in found.items():
        told.setdefault(_answer(answer), []).append(release)
    parts = [f"{what} on {span(on, list(found))}" if len(told) > 1 else what for what, on in told.items()]
    return "; ".join(parts)


def _answer(answer: Answer) -> str:
    by = ", ".join(map(_by, answer.by))
    why = f" ({text.escape(answer.why)})" if answer.why else ""
    if answer.state is CoverageState.OPTIONAL:
        return f"{by}, off by default{why}"
    state = f"**{answer.state.value}**" if answer.state is CoverageState.OPEN else answer.state.value
    return f"{state}{f' by {by}' if by else ''}{why}"


def _by(named: str) -> str:
    kind, _, name = named.partition(" ")
    return f"[`{name}`](catalogue.md#{name})" if kind == "patch" else f"`{kind}`: `{name}`"


def _anchor(title: str) -> str:
    return "".join(each for each in title.lower() if each.isalnum() or each in "- ").replace(" ", "-")
