"""`show ID`: the story of one bug."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping

from ..engine import survey, versions
from ..engine import verdict as judge
from ..engine.settings import Settings
from .exits import OK, TROUBLE
from .printing import output

NAME = "show"
HELP = "the story of one bug: what users see, what the patch does, upstream's links, and whether it applies here"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", metavar="ID")


def run(options: argparse.Namespace) -> int:
    entry = survey.entry(options.id)
    patch = entry.patch
    verdict = judge.decide(entry, Settings.read())
    story = {
        "id": entry.id,
        "title": patch.title,
        "severity": patch.severity.value,
        "affects": dict(patch.affects),
        "fixed_in": patch.fixed_in,
        "continued_by": patch.continued_by,
        "upstream": list(patch.upstream),
        "symptom": patch.symptom,
        "changes": [f"{type(change).__name__} of {change.target}" for change in patch.changes],
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "story": inspect.cleandoc(entry.docstring),
        "distribution": entry.distribution,
        "file": entry.module.__file__,
    }
    if options.json:
        output.print_json(story)
    else:
        _print(story)
    return TROUBLE if verdict.outcome.trouble else OK


def _print(story: Mapping[str, object]) -> None:
    affects = story["affects"]
    assert isinstance(affects, dict)
    goes_on = story["continued_by"]
    print(f"{story['id']}: {story['title']}\n")
    print(f"{story['story']}\n")
    facts = {
        "severity": story["severity"],
        "affects": ", ".join(f"{name} {specifiers}" for name, specifiers in affects.items()),
        "fixed in": story["fixed_in"] or "no release so far" + f"; goes on as {goes_on}" * bool(goes_on),
        "symptom": story["symptom"] or "none: no error and no log line shows it",
        "changes": story["changes"],
        "here": f"{story['outcome']}: {story['reason']}",
        "from": versions.described(str(story["distribution"])) or story["distribution"],
        "file": story["file"],
    }
    for name, value in facts.items():
        lines = value if isinstance(value, list) else [value]
        for number, line in enumerate(lines):
            print(f"{name + ':' if not number else '':<10} {line}")
