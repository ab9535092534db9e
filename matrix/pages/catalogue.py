"""docs/catalogue.md: one section per patch."""

from __future__ import annotations

import json
import re
from pathlib import Path

from packaging.version import Version

from dsfix.engine.registry import Entry
from matrix import fingerprints
from matrix.bystanders import docs as bystanders
from matrix.bystanders import records
from matrix.proofs import State

from . import text
from .evidence import Evidence

_HEAD = """\
# The patches

Written by `python -m tox run -e docs` from `patches/` and from what was run; edit those. Each patch cures one bug. "As
proven" is what the bug's reproduction showed without the patch and with it: [matrix.md](matrix.md) has every release,
`python -m dsfix verify ID` does the same with what you have installed. "CPU time of a step" is the median and the
quartiles of rounds of steps by turns in one process, by `python -m tox run -e bench-steps-of-patches -- --patch ID`;
what is here was measured beside other work, where less than 0.1 is noise.

"""
_STEPS = Path(__file__).resolve().parents[2] / "bench" / "steps_of_patches.json"

_MEASURED = """
## What was measured

By the reproductions, on the newest release that a patch is for: `python -m tox run -e matrix -- --patch ID --release X
--again` runs one again; `matrix/proofs/ID.json` has what was seen on the other releases.

"""


def render(evidence: Evidence) -> str:
    """The page's Markdown."""
    rows = [
        [
            f"[`{entry.id}`](#{entry.id})",
            entry.patch.severity.value,
            text.escape(entry.patch.title),
            text.affected(entry.patch, evidence.releases),
            text.escape(text.beside(entry.patch)),
            entry.patch.fixed_in or (f"[goes on](#{entry.patch.continued_by})" if entry.patch.continued_by else ""),
        ]
        for entry in evidence.entries
    ]
    contents = text.table(("patch", "severity", "bug", "DeepSpeed", "only with", "fixed in"), rows)
    return _HEAD + contents + _measured(evidence) + "".join(_section(entry, evidence) for entry in evidence.entries)


def _measured(evidence: Evidence) -> str:
    """What each reproduction said without the patch and with it, on the newest release where both were seen."""
    rows = []
    for entry in evidence.entries:
        upstream = ", ".join(f"[{text.short_link(link)}]({link})" for link in entry.patch.upstream)
        cured = [
            (release, judged.cell)
            for cells in evidence.cells[entry.id].values()
            for release, judged in cells.items()
            if judged.cell is not None and judged.state is State.CURED
        ]
        seen = ["", "", ""]
        if cured:
            release, cell = max(cured, key=lambda each: Version(each[0]))
            seen = [release, *(text.escape(run.detail) for run in (cell.without, cell.patched))]
        releases = text.affected(entry.patch, evidence.releases)
        rows.append([f"[`{entry.id}`](#{entry.id})", entry.patch.severity.value, releases, upstream, *seen])
    heads = ("patch", "severity", "DeepSpeed", "upstream", "measured on", "without the patch", "with it")
    return _MEASURED + text.table(heads, rows)


def _section(entry: Entry, evidence: Evidence) -> str:
    patch = entry.patch
    facts = [
        f"Severity: {patch.severity.value}",
        "Affects: " + ", ".join(text.code(f"{name} {specifiers}") for name, specifiers in patch.affects.items()),
    ]
    for column in evidence.columns:
        if not column.on_gpu or any(judged.cell for judged in evidence.cells[entry.id][column.name].values()):
            facts.append(f"As proven, {column.name}: {text.proven(evidence, entry.id, column)}")
    shown = text.code(patch.symptom) if patch.symptom else "nothing"
    goes_on = f"; goes on as [{patch.continued_by}](#{patch.continued_by})" if patch.continued_by else ""
    facts += [f"Fixed in: {patch.fixed_in or 'no release so far'}{goes_on}", f"The log shows: {shown}"]
    if not patch.default:
        facts.append(f"Off unless it is named: `DSFIX_ONLY={entry.id}`")
    facts += _bystanders(entry.id)
    facts += _step(entry)
    if patch.ranks > 1:
        facts.append(f"To see it takes {patch.ranks} ranks")
    lines = [f"\n## {entry.id}\n", f"{text.escape(patch.title)}\n", *(f"- {fact}" for fact in facts)]
    lines += [""]
    story = text.story(entry)
    lines += [f"**{heading}:** {_linked(text.escape(told), evidence)}\n" for heading, told in story.items()]
    told = story.get("Upstream", "")
    if others := [f"<{link}>" for link in patch.upstream if not re.search(rf"{re.escape(link)}(?!\w)", told)]:
        lines.append(f"See also {', '.join(others)}\n")
    return "\n".join(lines)


def _bystanders(patch_id: str) -> list[str]:
    """What jobs without the bug pay, as far as that is recorded."""
    one = bystanders.of(patch_id, records.load_all())
    if one is None:
        return []
    told = f"{one.jobs} jobs run {one.run} of its {one.statements} statements"
    if one.added:
        names = ("collectives", "waits of the host", "bytes of peak memory")
        most = ", ".join(f"{count} {name}" for count, name in zip(one.added, names))
        told += f"; one that stays the same has at the most {most} more with it"
    return [f"[Bystanders](bystanders.md), {one.release}: {told}"]


def _step(entry: Entry) -> list[str]:
    """What it adds to a step of usual jobs, as far as that was measured with the patch as it is."""
    measured = json.loads(_STEPS.read_text(encoding="utf-8")).get(entry.id, {})
    if measured.get("of") != fingerprints.of(entry).declaration:
        return []
    if not measured["steps"]:
        return [f"CPU time of a step, {measured['release']}: no step of the usual settings runs its lines"]
    told = [
        "{1:.2f} ({0:.2f} to {2:.2f}; {setting})".format(*each["quartiles"], setting=each["setting"])
        if "quartiles" in each
        else f"a job needs it ({each['setting']})"
        for each in measured["steps"]
    ]
    return [f"CPU time of a step, {measured['release']}, with it by without: {', '.join(told)}"]


def _linked(told: str, evidence: Evidence) -> str:
    """The story with a link wherever it names a patch."""
    ids = "|".join(re.escape(entry.id) for entry in evidence.entries)
    return re.sub(rf"(?<![\w/`])({ids})(?![\w`])", r"[\1](#\1)", told)
