"""`find WORDS`: searches the known bugs by words or by an upstream number."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from .. import survey, versions
from ..catalogue import registry
from ..known_bugs import coverage, search, table
from .exits import NO_ANSWER, OK
from .printing import known_bugs, output

NAME = "find"
HELP = "search the known bugs by words or upstream number; those of the installed DeepSpeed come first"
_MOST = 10  # lines of a group


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "words",
        metavar="WORD",
        nargs="+",
        help="words that describe the problem, an id, or an upstream number: 7948, #7948, URL",
    )


def run(options: argparse.Namespace) -> int:
    known, entries, query = table.load(), registry.catalogue(), " ".join(options.words)
    bugs = known_bugs.lookup(query)
    if not bugs and not survey.reference(query):
        bugs = search.search(query, coverage.bugs(known, entries), entries)
    try:
        release, about = table.installed_release(versions.installed("deepspeed") or "", known)[0], ""
    except table.UnknownRelease:
        release, about = known.releases[-1], "the newest, "
    here = [(bug, bug.on(release)) for bug in bugs if bug.row.has(release)]
    others = [(bug, bug.on(bug.row.last or known.releases[-1])) for bug in bugs if not bug.row.has(release)]
    if options.json:
        about_all = {"distributions": survey.distributions(), "deepspeed": str(release)}
        found = [[known_bugs.as_json(*each) for each in several] for several in (here, others)]
        output.print_json({**about_all, "here": found[0], "others": found[1]})
    elif bugs:
        print(survey.versions_line())
        _print(f"in {about}deepspeed {release}", (line for each in here for line in known_bugs.lines(*each)))
        spans = {bug: f"{bug.row.first} to {bug.row.last or known.releases[-1]}" for bug, _ in others}
        _print(
            "in other releases",
            ((name, f"{spans[bug]}: {text}") for bug, answer in others for name, text in known_bugs.lines(bug, answer)),
        )
        print("\n`python -m dsfix show ID` explains one.")
    else:
        print(f"No known bug matches {query!r}: try fewer or different words.")
    return OK if bugs else NO_ANSWER


def _print(group: str, lines: Iterable[tuple[str, str]]) -> None:
    once = dict[str, str]()
    for name, text in lines:
        once.setdefault(name, text)  # several rows of the table may have one patch
    heading = f"{group}: top {_MOST} of {len(once)}" if len(once) > _MOST else group
    output.print_grouped([(heading, *line) for line in [*once.items()][:_MOST]])
