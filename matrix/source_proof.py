"""`source`: the source proof, which checks every patch against the source of every release without running it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsfix import versions
from dsfix.catalogue import registry
from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import OK, TROUBLE, CommandError
from dsfix.cli.printing import output
from dsfix.engine.verdict import Verdict
from dsfix.outcome import BUG_ABSENT, Outcome, UnknownPatch
from matrix import proofs, runner, table
from matrix.sdists import Index, Unavailable

NAME = "source"
HELP = "check every patch against the source of every release, without running DeepSpeed (source proof)"
PROVEN = Path(__file__).resolve().parents[1] / "dsfix" / "catalogue" / "proven.txt"
_WORKER = Path(__file__).with_name("verdicts.py")
_COLUMNS = ("patch", "mismatches", "affected", "fixed", "not affected", "seconds", "applies to")


@dataclass(frozen=True)
class SourceCell:
    """One patch on one release.

    inside: whether `affects` claims this release with the distributions installed here. number: the verdict; source:
    the verdict with the release's number hidden. faults: why changes of an applicable patch cannot be made.
    fingerprint: of the source and an applicable patch, as in proven.txt.
    """

    patch_id: str
    release: str
    inside: bool
    number: Verdict
    source: Verdict
    faults: tuple[str, ...]
    fingerprint: str
    seconds: float

    def mismatches(self) -> list[str]:
        """What contradicts the claim; each completes a sentence that begins with the release."""
        where = "inside" if self.inside else "outside"
        mismatches = []
        expected = (Outcome.PENDING,) if self.inside else BUG_ABSENT
        for how, verdict in (("", self.number), (" with its number hidden", self.source)):
            if verdict.outcome not in expected:
                mismatches.append(f", {where} its range{how}, it is {verdict.outcome.value}: {verdict.reason}")
        return mismatches + [f": {fault}" for fault in self.faults]


@dataclass(frozen=True)
class Missing:
    """A release that could not be checked, and why."""

    release: str
    reason: str


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--patch", nargs="+", metavar="ID", help="only these patches")
    command.add_argument("--release", nargs="+", metavar="X", help="only these DeepSpeed releases")
    command.add_argument("--check", action="store_true", help="do not write proven.txt; exit status 1 if it is stale")


def run(options: argparse.Namespace) -> int:
    """0 if all claims hold; 1 on a mismatch or an unavailable release. Raises CommandError."""
    begun = time.monotonic()
    releases = table.load().releases
    entries = chosen(options.patch)
    cells, missing = prove(entries, _named(releases, options.release), Index(), _progress())
    if missing and not cells:
        raise CommandError(missing[0].reason)
    checked = len({cell.release for cell in cells})
    rows, mismatches = [], []
    for entry in entries:
        mine = [cell for cell in cells if cell.patch_id == entry.id]
        faults = sentences(entry.id, mine)
        faults += end_of_range(entry, mine) if checked == len(releases) else []
        rows.append(_row(entry.id, mine, len(faults)))
        mismatches += faults
    print(versions.versions_text("torch", "numpy", "python"))
    output.print_table(_COLUMNS, rows)
    for each in missing:
        print(f"deepspeed {each.release} was not checked: {each.reason}")
    for sentence in mismatches:
        print(sentence)
    counts = {"patches": len(entries), "releases": checked, "cells": len(cells), "mismatches": len(mismatches)}
    print(", ".join(f"{what}: {count}" for what, count in counts.items()) + f", {time.monotonic() - begun:.0f} s")
    if missing or mismatches:
        return TROUBLE
    return _keep(entries, cells, options.check) if checked == len(releases) else OK


def _keep(entries: Sequence[Entry], cells: Sequence[SourceCell], check: bool) -> int:
    """Writes the proven fingerprints of these patches to proven.txt; check: only reports whether they are there."""
    before = PROVEN.read_text(encoding="ascii") if PROVEN.is_file() else ""
    lines = {line.partition(" ")[0]: line for line in before.splitlines()}
    for entry in entries:
        mine = (cell.fingerprint for cell in cells if cell.patch_id == entry.id and cell.fingerprint)
        lines[entry.id] = " ".join((entry.id, *dict.fromkeys(mine)))
    text = "".join(f"{lines[each]}\n" for each in sorted(lines.keys() & registry.catalogue().keys()))
    if text == before:
        return OK
    if check:
        print(f"{PROVEN.name} is stale: `python -m tox run -e source -- --patch ID` writes it")
        return TROUBLE
    PROVEN.write_text(text, encoding="ascii")
    print(f"{PROVEN.name} written")
    return OK


def chosen(ids: Sequence[str] | None) -> list[Entry]:
    """The patches of these ids, or all. Raises CommandError."""
    catalogue = registry.catalogue()
    for patch_id in ids or ():
        if patch_id not in catalogue:
            raise CommandError(str(UnknownPatch(patch_id, list(catalogue))))
    broken = registry.load()[1]
    if broken:
        raise CommandError(f"patch {broken[0].id} cannot be loaded: {broken[0].reason}")
    return [entry for entry in catalogue.values() if not ids or entry.id in ids]


def _named(releases: Sequence[table.Release], names: Sequence[str] | None) -> list[str]:
    known = [release.deepspeed for release in releases]
    for name in names or ():
        if name not in known:
            raise CommandError(f"the table has no release {name}: it covers {known[0]} to {known[-1]}")
    return [each for each in known if not names or each in names]


def prove(
    entries: Collection[Entry],
    releases: Sequence[str],
    index: Index,
    finished: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[list[SourceCell], list[Missing]]:
    """Judge every patch on every release, one process per release, as many at a time as there are cores.

    Returns the cells and the releases that could not be checked, both in the releases' order.
    """
    mismatches: dict[str, list[SourceCell] | Missing] = {}
    with runner.run_parallel(releases, lambda release: _attempt(release, entries, index), os.cpu_count() or 1) as ended:
        for release, each in ended:
            mismatches[release] = each
            finished(len(mismatches), len(releases))
    in_order = [mismatches[each] for each in releases]
    cells = [cell for each in in_order if not isinstance(each, Missing) for cell in each]
    return cells, [each for each in in_order if isinstance(each, Missing)]


def _attempt(release: str, entries: Collection[Entry], index: Index) -> list[SourceCell] | Missing:
    try:
        return _check(release, entries, index)
    except Unavailable as error:
        return Missing(release, str(error))


def _check(release: str, entries: Collection[Entry], index: Index) -> list[SourceCell]:
    sources = index.sources(release)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSFIX_")}
    environment["DSFIX_DISABLE"] = "1"  # that process judges patches and applies none
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(sources), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(_WORKER), *(entry.id for entry in entries)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"verdicts.py failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    answer = json.loads(done.stdout)
    if answer["imported"]:
        raise Unavailable(f"{' and '.join(answer['imported'])} was imported, so this was not a source proof")
    return [_cell(entry, release, answer["patches"][entry.id]) for entry in entries]


def _cell(entry: Entry, release: str, answer: Mapping[str, Any]) -> SourceCell:
    here = {name: versions.installed(name) for name in entry.patch.affects}
    present = {name: version for name, version in {**here, "deepspeed": release}.items() if version}
    return SourceCell(
        patch_id=entry.id,
        release=release,
        inside=proofs.inside(entry.patch, present),
        number=Verdict(Outcome(answer["number"][0]), answer["number"][1]),
        source=Verdict(Outcome(answer["source"][0]), answer["source"][1]),
        faults=tuple(answer["faults"]),
        fingerprint=answer["fingerprint"],
        seconds=answer["seconds"],
    )


def sentences(patch_id: str, cells: Sequence[SourceCell]) -> list[str]:
    """What contradicts the patch's claim; releases with the same mismatch share a sentence."""
    ranges: dict[str, list[str]] = {}
    for cell in cells:
        for mismatch in cell.mismatches():
            ranges.setdefault(mismatch, []).append(cell.release)
    releases = [cell.release for cell in cells]
    return [f"{patch_id}: on {table.span(on, releases)}{mismatch}" for mismatch, on in ranges.items()]


def end_of_range(entry: Entry, cells: Sequence[SourceCell]) -> list[str]:
    """What is wrong with `fixed_in`, according to the patch's cells on all releases."""
    patch = entry.patch
    claimed = [position for position, cell in enumerate(cells) if patch.claims(cell.release)]
    if not claimed:
        return [f"{entry.id}: its range contains no release of the table"]
    after = cells[claimed[-1] + 1] if claimed[-1] + 1 < len(cells) else None
    if after is None:
        newest = cells[-1].release
        wrong = f"{entry.id}: fixed_in is {patch.fixed_in}, but its range contains the newest release, {newest}"
        return [wrong] if patch.fixed_in is not None else []
    if patch.continued_by is not None:
        return _end_of_part(entry, after.release)
    if patch.fixed_in != after.release:
        return [f"{entry.id}: fixed_in is {patch.fixed_in}, but the first release after its range is {after.release}"]
    if any(cell.inside for cell in cells) and after.source.outcome is not Outcome.ALREADY_FIXED:
        outcome = f"{after.source.outcome.value} ({after.source.reason})"
        why = "not already-fixed: the source has none of `fixed`"
        return [f"{entry.id}: on {after.release}, which fixed it, with its number hidden, it is {outcome}, {why}"]
    return []


def _end_of_part(entry: Entry, after: str) -> list[str]:
    """What is wrong with a patch whose bug is continued by a second patch, in different code."""
    patch = entry.patch
    if patch.fixed_in is not None:
        return [f"{entry.id}: fixed_in is {patch.fixed_in}, but {patch.continued_by} continues it"]
    following = registry.catalogue().get(patch.continued_by or "")
    if following is None or not following.patch.claims(after):
        return [f"{entry.id}: {patch.continued_by} should continue it, but is not a patch for {after}"]
    return []


def _row(patch_id: str, cells: Sequence[SourceCell], mismatches: int) -> tuple[str, ...]:
    outside = [cell.source.outcome for cell in cells if not cell.inside]
    return (
        patch_id,
        str(mismatches or "none"),
        str(len(cells) - len(outside)),
        str(outside.count(Outcome.ALREADY_FIXED)),
        str(outside.count(Outcome.NOT_AFFECTED)),
        f"{sum(cell.seconds for cell in cells):.1f}",
        table.span([cell.release for cell in cells if cell.inside], [cell.release for cell in cells]) or "none here",
    )


def _progress() -> Callable[[int, int], None]:
    def finished(done: int, of: int) -> None:
        end = "\n" if done == of else ""
        print(f"\r{done} of {of} releases", end=end, file=sys.stderr, flush=True)

    return finished if sys.stderr.isatty() else lambda done, of: None
