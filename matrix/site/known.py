"""Pages of what has no patch: the rows of the table of known bugs, and the messages that `explain` knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.specifiers import SpecifierSet

import dsfix.check.rules
import dsfix.doctor.rules
from dsfix import rules
from dsfix.cli.printing.known_bugs import bug_name
from dsfix.explain.signature import Role, Signature
from dsfix.known_bugs.coverage import Bug, CoverageState, Status
from dsfix.known_bugs.table import Table
from dsfix.rules import Rule
from matrix.pages import text
from matrix.site import bugs

RULES: Mapping[str, Mapping[str, Rule]] = {
    "check": {each.id: each for each in rules.load(dsfix.check.rules.__name__)},
    "doctor": {each.id: each for each in rules.load(dsfix.doctor.rules.__name__)},
}
_SAID = {
    CoverageState.UNSAFE: "It cannot be changed safely at run time",
    CoverageState.OUTSIDE: "dsfix leaves it alone, as it is no part of training",
    CoverageState.UNREACHABLE: "No job is known that meets it",
    CoverageState.UNCONFIRMED: "It is not confirmed",
}
_ROLES = {
    Role.POSSIBLE: "The message has several causes; the likely ones first.",
    Role.FOLLOW_UP: "An earlier error causes it, perhaps on another rank: look for the first one in the log.",
    Role.NOTE: "The job continues.",
}


def name(bug: Bug) -> str:
    """The name of the bug's page, which stays."""
    return re.sub(r"[^\w-]+", "-", bug.row.key)


def affected(bug: Bug, table: Table) -> list[str]:
    return [str(release) for release in table.releases if bug.row.has(release)]


def answer(bug: Bug, table: Table) -> Status:
    """What dsfix has on the last release with the bug."""
    return bug.on(bug.row.last or table.releases[-1])


def span(bug: Bug, table: Table) -> str:
    row = bug.row
    ends = "" if row.first == row.last else f" to {row.last or table.releases[-1]}"
    return f"{'about ' * row.about}{row.first}{ends}"


def of_row(bug: Bug, table: Table, signatures: Mapping[str, Signature], torch: Sequence[str]) -> str:
    """The page of a row."""
    row, releases = bug.row, [str(release) for release in table.releases]
    links = "".join(f"- [{text.short_link(link)}]({link})\n" for link in row.urls)
    return "\n".join(
        (
            f"---\norphan: true\n---\n\n# {text.escape(row.bug)}\n",
            f"{text.escape(bug_name(bug))} · {row.severity} · {row.area} · DeepSpeed {span(bug, table)}\n",
            bugs.version_form(releases, affected(bug, table), torch, torch),
            "## What helps\n",
            *_helps(bug, table, signatures),
            "## Upstream\n",
            links or "Nothing is reported: it was seen in the source.\n",
        )
    )


def _helps(bug: Bug, table: Table, signatures: Mapping[str, Signature]) -> Iterator[str]:
    row, status = bug.row, answer(bug, table)
    for cover in bug.covers:
        yield f"- A patch, for DeepSpeed {SpecifierSet(cover.claimed)}: [{cover.id}]({cover.id}.md)"
    for kind, each in row.states:
        if kind == "explain":
            one = signatures[each]
            shown = text.escape(f"{one.what} {one.remedy}".strip())
            yield f"- [{text.escape(one.title)}](../messages/{each}.md): {shown}"
        elif kind in RULES:
            shown = f"`python -m dsfix {kind}{' ds_config.json' * (kind == 'check')}` reports it (`{each}`)"
            yield f"- {shown}: {text.escape(RULES[kind][each].remedy)}."
    if row.last:
        following = table.releases[table.releases.index(row.last) + 1]
        yield f"- DeepSpeed {following} or later does not have it."
    reasons = [reason for kind, reason in row.states if kind not in ("explain", "patch", *RULES)]
    said = _SAID.get(status.state, "What a patch leaves" if bug.covers else "No patch so far")
    yield "".join(f"- {said}: {text.escape(each)}.\n" for each in reasons)
    if not (bug.covers or row.states or row.last):
        yield "dsfix has nothing for it so far.\n"


def of_signature(one: Signature, rows: Iterable[Bug]) -> str:
    """The page of a message."""
    affects = ", ".join(f"{each} {specifiers}" for each, specifiers in one.affects.items())
    parts = [
        f"---\norphan: true\n---\n\n# {text.escape(one.title)}\n",
        f"Only with {text.escape(affects)}.\n" * bool(affects),
        f"{_ROLES[one.role]}\n" if one.role in _ROLES else "",
        f"{text.escape(one.what)}\n" * bool(one.what),
        f"What helps: {text.escape(one.remedy)}\n" * bool(one.remedy),
        "".join(f"- The patch [{patch}](../bugs/{patch}.md)\n" for patch in one.patches),
        "".join(f"- [{text.escape(bug.row.bug)}](../bugs/{name(bug)}.md)\n" for bug in rows),
    ]
    if one.pattern:
        parts += ["## What the log shows\n", *(bugs.block("text", match) for match in one.matches)]
        parts.append(f"The log matches {text.code(one.pattern)}.\n")
    parts += [f"- <{each}>" if each.startswith("https:") else f"- {text.escape(each)}" for each in one.evidence]
    return "\n".join(part for part in parts if part)


def listing(known: Iterable[Bug], table: Table) -> str:
    """The page that lists the bugs without a patch."""
    rows = [
        (
            f"[{text.escape(bug_name(bug))}]({name(bug)}.md)",
            bug.row.severity,
            text.escape(bug.row.bug),
            span(bug, table),
            answer(bug, table).state.value,
        )
        for bug in known
        if not bug.covers
    ]
    head = "# Bugs without a patch\n\nWhat helps is on the page of each. "
    head += "`python -m dsfix list --upstream` shows those of the installed DeepSpeed.\n\n"
    return head + text.table(("upstream", "severity", "what users see", "DeepSpeed", "dsfix"), rows)
