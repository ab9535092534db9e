"""`add`: add new releases from the index to the table, and report what every patch does on them, and what changed."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from packaging.version import Version

from dsfix.cli.exits import OK, TROUBLE, CommandError
from dsfix.known_bugs.table import PATH as KNOWN
from dsfix.outcome import Outcome
from dsfix.versions import satisfies
from matrix import runner, source_proof, table, toxini
from matrix.changed import command as changed
from matrix.environments import Unavailable as NotRunHere
from matrix.known_bug_rows import with_head
from matrix.sdists import Index, Unavailable

NAME = "add"
GATE = toxini.PATH.with_name("dsfix") / "versions.py"
HELP = "add new releases from the index to the table, and report what every patch does on them, and what changed"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="jobs in parallel")


def run(options: argparse.Namespace) -> int:
    """0 if no patch has to change, else 1. Raises CommandError."""
    current = table.load()
    index = Index()
    try:
        newest = current.releases[-1].deepspeed
        if newest not in index.sdists:
            raise CommandError(f"the package index does not have deepspeed {newest}, which is in the table")
        new = [described(name, index, current) for name in lacking(current, index.sdists)]
    except Unavailable as error:
        raise CommandError(str(error)) from None
    if not new:
        print(f"No release is newer than {current.releases[-1].deepspeed}.")
        return OK
    extended = with_releases(current, new)
    entries = source_proof.chosen(None)
    environments = toxini.updated(toxini.text(), extended)
    # prove first: if this is interrupted, a release already in the table would never be checked
    cells, missing = source_proof.prove(entries, [each.deepspeed for each in new], index)
    table.save(extended)
    toxini.PATH.write_text(environments, encoding="utf-8")
    known = KNOWN.read_text(encoding="utf-8")
    KNOWN.write_text(
        with_head(known, releases=" ".join(release.deepspeed for release in extended.releases)), encoding="utf-8"
    )
    GATE.write_text(proven(GATE.read_text(encoding="utf-8"), extended), encoding="utf-8")
    for each in new:
        print(f"deepspeed {each.deepspeed} of {each.released} was added to the table.")
        for sentence in misfits(each, extended):
            print(f"  {sentence}")
        for cell in cells:
            if cell.release == each.deepspeed:
                print(f"  {cell.patch_id}: {advice(cell)}")
    for lost in missing:
        print(f"deepspeed {lost.release} was not checked: {lost.reason}")
    for each in new:
        try:
            changed.report(predecessor(each, extended), each.deepspeed, options.jobs)
        except NotRunHere as reason:
            print(f"deepspeed {each.deepspeed} was not run: {reason}")
    print(f"Next: python -m tox run -e matrix -- --release {' '.join(each.deepspeed for each in new)}")
    print("Then: python -m tox run -e pages")
    print("For the bugs that it fixes: python -m tox run -e pages -- known-bug-rows --clone DIR")
    return TROUBLE if missing or any(cell.mismatches() for cell in cells) else OK


def proven(text: str, releases: table.Table) -> str:
    """The module of the version gate, which contains the newest release that the patches were run on."""
    return re.sub(r"(?m)^NEWEST_PROVEN = .*$", f'NEWEST_PROVEN = Version("{releases.releases[-1].deepspeed}")', text)


def lacking(current: table.Table, offered: Iterable[str]) -> list[str]:
    """The offered releases that are newer than the table's first and not in the table."""
    known = {release.deepspeed for release in current.releases}
    return [name for name in offered if name not in known and Version(name) > current.releases[0].version]


def described(name: str, index: Index, current: table.Table) -> table.Release:
    """A row of the table. Raises Unavailable."""
    facts = index.facts(name)
    first = next(iter(current.environments.values()))
    return table.Release(
        deepspeed=name,
        released=facts.released,
        requires={
            distribution: facts.requires[distribution]
            for distribution in first.distributions
            if distribution in facts.requires
        },
        pythons=facts.pythons,
        sampled=False,
    )


def with_releases(current: table.Table, new: Sequence[table.Release]) -> table.Table:
    """The table with these releases. CI samples the newest release, and the last release of the previous minor."""
    before = current.releases[-1]
    releases = sorted((*current.releases, *new), key=lambda each: each.version)
    newest = releases[-1]
    if newest is not before:
        series = [release for release in releases if release.version.release[:2] == before.version.release[:2]]
        releases[releases.index(before)] = dataclasses.replace(before, sampled=before.sampled and series[-1] is before)
        releases[-1] = dataclasses.replace(newest, sampled=True)
    return table.Table(current.environments, tuple(releases))


def predecessor(release: table.Release, current: table.Table) -> str:
    """The release of the table before this one."""
    return [each.deepspeed for each in current.releases if each.version < release.version][-1]


def misfits(release: table.Release, current: table.Table) -> Iterator[str]:
    """The requirements of the release that its environments do not meet."""
    for name, environment in current.environments.items():
        for distribution, version in environment.distributions.items() if environment.runs(release) else ():
            specifiers = release.requires.get(distribution, "")
            if not satisfies(specifiers, version):
                yield f"requires {distribution} {specifiers}, but {name} has {version}: it needs its own environment"


def advice(cell: source_proof.SourceCell) -> str:
    """What the patch does on this release, and what to change."""
    outcome, reason = cell.source.outcome, cell.source.reason
    if cell.inside:
        if cell.number.outcome is Outcome.PENDING and outcome is Outcome.PENDING:
            return "still affected" if not cell.faults else f"drifted, {'; '.join(cell.faults)}: adapt its changes"
        if Outcome.ALREADY_FIXED in (cell.number.outcome, outcome):
            return f"fixed, {reason}: end its range before {cell.release}, and set fixed_in to it"
        return (
            f"{cell.number.outcome.value}, {cell.number.reason}: if the bug is gone, end its range before "
            f"{cell.release}, set fixed_in to it and add the evidence to `fixed`; otherwise adapt its changes"
        )
    if outcome is Outcome.PENDING:
        return f"outside its range, but the bug is in the source: extend its range to {cell.release}"
    if outcome.trouble:
        return f"{outcome.value}, {reason}"
    return "not affected" if outcome is Outcome.NOT_AFFECTED else "not affected, the fix is in the source"
