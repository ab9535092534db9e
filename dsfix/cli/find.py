"""`find WORDS`: the known bugs that are about some words, or that an upstream number names."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from .. import survey, versions
from ..catalogue import registry
from ..upstream import coverage, releases, search, table
from .exits import OK, UNSEEN
from .printing import output, upstream

NAME = "find"
HELP = "search the known bugs by words or an upstream number, those of the installed DeepSpeed first"
_MOST = 10  # lines of a group


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("words", metavar="WORD", nargs="+", help="what happens; an id; 7948, #7948 or its address")


def run(options: argparse.Namespace) -> int:
    known, entries, query = table.load(), registry.catalogue(), " ".join(options.words)
    found = upstream.named(query) or search.search(query, coverage.bugs(known, entries), entries)
    try:
        release, about = releases.installed(versions.installed("deepspeed") or "", known)[0], ""
    except releases.UnknownRelease:
        release, about = known.releases[-1], "the newest, "
    if options.json:
        bugs = [{**upstream.as_json(bug, bug.on(release)), "here": bug.row.has(release)} for bug in found]
        output.print_json({"distributions": survey.distributions(), "deepspeed": str(release), "bugs": bugs})
    elif found:
        print(survey.heading())
        newest = known.releases[-1]
        here = [upstream.line(bug, bug.on(release)) for bug in found if bug.row.has(release)]
        others = [
            (name, f"{bug.row.first} to {bug.row.last or newest}: {text}")
            for bug in found
            if not bug.row.has(release)
            for name, text in [upstream.line(bug, bug.on(bug.row.last or newest))]
        ]
        _print(f"in {about}deepspeed {release}", dict(here))
        _print("in other releases", dict(others))
        print("\n`python -m dsfix show NAME` explains one.")
    else:
        print(f"Nothing is known of {query!r}: try fewer or other words.")
    return OK if found else UNSEEN


def _print(group: str, lines: Mapping[str, str]) -> None:
    best = [*lines.items()][:_MOST]
    heading = f"{group}{f': the best {_MOST} of {len(lines)}' if len(lines) > _MOST else ''}"
    output.print_lines([(heading, *line) for line in best])
