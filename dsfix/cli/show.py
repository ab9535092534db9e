"""`show ID`: everything about one bug."""

from __future__ import annotations

import argparse
import inspect
import re

from .. import survey, versions
from ..catalogue.registry import Entry
from ..engine.verdict import Verdict
from ..known_bugs import table
from ..known_bugs.coverage import Bug
from ..outcome import UnknownPatch
from ..patch import Patch
from ..settings import Settings
from .exits import OK, TROUBLE
from .printing import known_bugs, output
from .printing.known_bugs import Details

NAME = "show"
HELP = "show one bug: what users see, what the patch does, upstream links, and whether the patch applies here"
_BETWEEN = re.compile(r"\n\n|\n(?=\w+: )")  # the parts of a docstring


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID", help="the id of a patch, or an upstream number: 7948, #7948, URL")


def run(options: argparse.Namespace) -> int:
    try:
        entries, bugs = survey.find_entries(options.id), list[Bug]()
    except UnknownPatch:
        entries, bugs = [], known_bugs.lookup(options.id)
        if not bugs:
            raise
    verdicts = [(entry, survey.verdict_of(entry, Settings.read())) for entry in entries]
    last = table.load().releases[-1]
    answers = [(bug, bug.on(bug.row.last or last)) for bug in bugs]
    if options.json:
        shown = [known_bugs.as_json(*answer) for answer in answers]
        output.print_json({"patches": [_as_json(*each) for each in verdicts], "bugs": shown})
    else:
        stories = [*(_story(*each) for each in verdicts), *(known_bugs.detail_rows(*answer) for answer in answers)]
        for number, (paragraphs, rows) in enumerate(stories):
            print("\n" * bool(number), end="")
            for place, paragraph in enumerate(paragraphs, 1):
                output.print_paragraph(paragraph, "    ")
                print("\n" * (place in (1, 2, len(paragraphs))), end="")
            output.print_rows(rows, 11)
    return TROUBLE if any(verdict.outcome.trouble for _, verdict in verdicts) else OK


def _as_json(entry: Entry, verdict: Verdict) -> dict[str, object]:
    patch = entry.patch
    return {
        "id": entry.id,
        "title": patch.title,
        "severity": patch.severity.value,
        "affects": dict(patch.affects),
        "fixed_in": patch.fixed_in,
        "continued_by": patch.continued_by,
        "upstream": list(patch.upstream),
        "symptom": patch.symptom,
        "changes": _changes(patch),
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "story": inspect.cleandoc(entry.docstring),
        "distribution": entry.distribution,
        "file": entry.module.__file__,
    }


def _story(entry: Entry, verdict: Verdict) -> Details:
    """The patch's docstring, and facts about it."""
    patch = entry.patch
    parts = (" ".join(part.split()) for part in _BETWEEN.split(inspect.cleandoc(entry.docstring)))
    facts = {
        "here": [f"{output.outcome_label(verdict.outcome)}: {verdict.reason}"],
        "severity": [patch.severity.value],
        "affects": [_affects(patch)],
        "fixed in": [_fixed_in(patch)],
        "retire": [_retire(patch)],
        "symptom": [patch.symptom or "none (silent)"],
        "changes": _changes(patch),
        "upstream": [f"{link} ({what})" for link, what in patch.upstream.items()],
        "from": [versions.versions_text(entry.distribution) or entry.distribution],
        "file": [str(entry.module.__file__)],
    }
    return [f"{entry.id}: {patch.title}", *parts], [
        (f"{name}:" if not number else "", line) for name, lines in facts.items() for number, line in enumerate(lines)
    ]


def _affects(patch: Patch) -> str:
    ranges = ", ".join(f"{name} {specifiers}" for name, specifiers in patch.affects.items())
    from_the_first = f">={versions.EARLIEST_PROVEN}" in patch.affects.get("deepspeed", "")
    return f"{ranges}; releases before {versions.EARLIEST_PROVEN} were not tested" if from_the_first else ranges


def _changes(patch: Patch) -> list[str]:
    return [f"{type(change).__name__} of {change.target}" for change in patch.changes]


def _fixed_in(patch: Patch) -> str:
    continued = f"; {patch.continued_by} covers later releases" if patch.continued_by else ""
    return (patch.fixed_in or "no release yet") + continued


def _retire(patch: Patch) -> str:
    """When the patch file can be deleted."""
    if patch.fixed_in is None:
        return "once a release has the fix and earlier releases are no longer supported"
    return f"once releases before {patch.fixed_in} are no longer supported"
