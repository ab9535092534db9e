"""`show ID`: the story of one bug."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable

from .. import survey, versions
from ..catalogue.registry import Entry
from ..engine.verdict import Verdict
from ..patch import Patch
from ..settings import Settings
from .exits import OK, TROUBLE
from .printing import output

NAME = "show"
HELP = "the story of one bug: what users see, what the patch does, upstream links, whether it applies here"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID")


def run(options: argparse.Namespace) -> int:
    entry = survey.entry(options.id)
    verdict = survey.decide(entry, Settings.read())
    if options.json:
        output.print_json(_as_json(entry, verdict))
    else:
        _print(entry, verdict)
    return TROUBLE if verdict.outcome.trouble else OK


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


def _print(entry: Entry, verdict: Verdict) -> None:
    patch = entry.patch
    print(f"{entry.id}: {patch.title}\n")
    print(f"{inspect.cleandoc(entry.docstring)}\n")
    facts: dict[str, Iterable[str]] = {
        "here": [f"{output.word(verdict.outcome)}: {verdict.reason}"],
        "severity": [patch.severity.value],
        "affects": [_affects(patch)],
        "fixed in": [_fixed_in(patch)],
        "retire": [_retire(patch)],
        "symptom": [patch.symptom or "none: no error and no log line shows it"],
        "changes": _changes(patch),
        "upstream": _upstream(patch),
        "from": [versions.described(entry.distribution) or entry.distribution],
        "file": [str(entry.module.__file__)],
    }
    for name, lines in facts.items():
        for number, line in enumerate(lines):
            print(f"{name + ':' if not number else '':<10} {line}")


def _affects(patch: Patch) -> str:
    ranges = ", ".join(f"{name} {specifiers}" for name, specifiers in patch.affects.items())
    from_the_first = f">={versions.EARLIEST_PROVEN}" in patch.affects.get("deepspeed", "")
    return f"{ranges}; earlier releases have not been run" if from_the_first else ranges


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


def _upstream(patch: Patch) -> list[str]:
    """The links, each with what it did."""
    return [f"{link} ({what})" for link, what in patch.upstream.items()]
