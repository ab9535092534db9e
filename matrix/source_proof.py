"""`source`: the source proof, every patch against the source of every release; nothing of DeepSpeed is run."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from dsfix.cli.exits import OK, TROUBLE, Complaint
from dsfix.cli.printing import output
from dsfix.engine import registry, versions
from dsfix.engine.outcome import STAYS_OUT, Outcome, UnknownPatch
from dsfix.engine.registry import Entry
from dsfix.engine.verdict import Verdict
from dsfix.patch import Patch
from matrix import proofs, table
from matrix.sdists import Index, Unavailable

NAME = "source"
HELP = "source proof: every patch against the source of every release; nothing of DeepSpeed is run"
_WORKER = Path(__file__).with_name("verdicts.py")
_COLUMNS = ("patch", "mismatches", "affected", "fixed", "not affected", "seconds", "applies to")


@dataclass(frozen=True)
class Judged:
    """One patch on one release.

    inside: whether `affects` claims this release, beside what is installed here. number: the verdict; source: the
    verdict where the release's number is hidden. faults: why changes of a patch that applies could not be made.
    """

    patch_id: str
    release: str
    inside: bool
    number: Verdict
    source: Verdict
    faults: tuple[str, ...]
    seconds: float

    def mismatches(self) -> list[str]:
        """What contradicts the claim, without the release: the end of one sentence each."""
        where = "inside" if self.inside else "outside"
        found = []
        expected = (Outcome.PENDING,) if self.inside else STAYS_OUT
        for how, verdict in (("", self.number), (", its number hidden,", self.source)):
            if verdict.outcome not in expected:
                found.append(f", {where} its range{how} it is {verdict.outcome.value}: {verdict.reason}")
        return found + [f": {fault}" for fault in self.faults]


@dataclass(frozen=True)
class Missing:
    """A release that could not be looked at, and why."""

    release: str
    reason: str


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--patch", nargs="+", metavar="ID", help="these patches only")
    command.add_argument("--release", nargs="+", metavar="X", help="these releases of DeepSpeed only")


def run(options: argparse.Namespace) -> int:
    """0: the claims hold; 1: a mismatch, or a release that could not be had. Raises Complaint."""
    begun = time.monotonic()
    releases = table.load().releases
    entries = chosen(options.patch)
    cells, missing = prove(entries, _named(releases, options.release), Index(), _progress())
    if missing and not cells:
        raise Complaint(missing[0].reason)
    looked_at = len({cell.release for cell in cells})
    rows, mismatches = [], []
    for entry in entries:
        mine = [cell for cell in cells if cell.patch_id == entry.id]
        found = sentences(entry.id, mine)
        found += end_of_range(entry, mine) if looked_at == len(releases) else []
        rows.append((_row(entry.id, mine, len(found)), "red" if found else "green"))
        mismatches += found
    print(versions.described("torch", "numpy", "python"))
    output.print_table(_COLUMNS, rows)
    for each in missing:
        print(f"deepspeed {each.release} was not looked at: {each.reason}")
    for sentence in mismatches:
        print(sentence)
    counts = {"patches": len(entries), "releases": looked_at, "cells": len(cells), "mismatches": len(mismatches)}
    print(", ".join(f"{what}: {count}" for what, count in counts.items()) + f", {time.monotonic() - begun:.0f} s")
    return TROUBLE if missing or mismatches else OK


def chosen(ids: Sequence[str] | None) -> list[Entry]:
    """The patches of these ids, or all. Raises Complaint."""
    catalogue = registry.catalogue()
    for patch_id in ids or ():
        if patch_id not in catalogue:
            raise Complaint(str(UnknownPatch(patch_id, list(catalogue))))
    broken = registry.load()[1]
    if broken:
        raise Complaint(f"patch {broken[0].id} cannot be loaded: {broken[0].reason}")
    return [entry for entry in catalogue.values() if not ids or entry.id in ids]


def _named(releases: Sequence[table.Release], names: Sequence[str] | None) -> list[str]:
    known = [each.deepspeed for each in releases]
    for name in names or ():
        if name not in known:
            raise Complaint(f"the table has no release {name}: it goes from {known[0]} to {known[-1]}")
    return [each for each in known if not names or each in names]


def prove(
    entries: Collection[Entry],
    releases: Sequence[str],
    index: Index,
    finished: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[list[Judged], list[Missing]]:
    """Every patch on every release, in the releases' order, one process per release, as many as there are cores."""
    cells: dict[str, list[Judged]] = {}
    missing: dict[str, Missing] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(_look_at, each, entries, index): each for each in releases}
        try:
            for number, future in enumerate(as_completed(running), 1):
                release = running[future]
                try:
                    cells[release] = future.result()
                except Unavailable as error:
                    missing[release] = Missing(release, str(error))
                finished(number, len(releases))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    by_release = [cells[each] for each in releases if each in cells]
    return list(itertools.chain.from_iterable(by_release)), [missing[each] for each in releases if each in missing]


def _look_at(release: str, entries: Collection[Entry], index: Index) -> list[Judged]:
    sources = index.sources(release)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSFIX_")}
    environment["DSFIX_DISABLE"] = "1"  # nothing is to be applied in that process, only judged
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(sources), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(_WORKER), *(entry.id for entry in entries)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"the judge failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    answer = json.loads(done.stdout)
    if answer["imported"]:
        raise Unavailable(f"{' and '.join(answer['imported'])} was imported, so this was no proof by source")
    return [_cell(entry, release, answer["patches"][entry.id]) for entry in entries]


def _cell(entry: Entry, release: str, told: Mapping[str, Any]) -> Judged:
    beside = {name: versions.installed(name) for name in entry.patch.affects}
    present = {name: version for name, version in {**beside, "deepspeed": release}.items() if version}
    return Judged(
        patch_id=entry.id,
        release=release,
        inside=proofs.inside(entry.patch, present),
        number=Verdict(Outcome(told["number"][0]), told["number"][1]),
        source=Verdict(Outcome(told["source"][0]), told["source"][1]),
        faults=tuple(told["faults"]),
        seconds=told["seconds"],
    )


def sentences(patch_id: str, cells: Sequence[Judged]) -> list[str]:
    """What contradicts the patch's claim, one sentence for all releases of which the same is to be said."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        for mismatch in cell.mismatches():
            found.setdefault(mismatch, []).append(cell.release)
    releases = [cell.release for cell in cells]
    return [f"{patch_id}: on {table.span(on, releases)}{mismatch}" for mismatch, on in found.items()]


def end_of_range(entry: Entry, cells: Sequence[Judged]) -> list[str]:
    """What is wrong with `fixed_in`, by the patch's cells of all releases."""
    patch = entry.patch
    claimed = [position for position, cell in enumerate(cells) if _by_deepspeed(patch, cell.release)]
    if not claimed:
        return [f"{entry.id}: no release of the table is inside its range"]
    after = cells[claimed[-1] + 1] if claimed[-1] + 1 < len(cells) else None
    if after is None:
        newest = cells[-1].release
        wrong = f"{entry.id}: fixed_in is {patch.fixed_in}, but its range holds the newest release, {newest}"
        return [wrong] if patch.fixed_in is not None else []
    if patch.continued_by is not None:
        return _end_of_part(entry, after.release)
    if patch.fixed_in != after.release:
        return [f"{entry.id}: fixed_in is {patch.fixed_in}, but the first release after its range is {after.release}"]
    if any(cell.inside for cell in cells) and after.source.outcome is not Outcome.ALREADY_FIXED:
        told = f"{after.source.outcome.value} ({after.source.reason})"
        why = "not already-fixed: none of `fixed` is there"
        return [f"{entry.id}: on {after.release}, which fixed it, its number hidden, it is {told}, {why}"]
    return []


def _end_of_part(entry: Entry, after: str) -> list[str]:
    """What is wrong where a bug goes on in other code, for which there is another patch."""
    patch = entry.patch
    if patch.fixed_in is not None:
        return [f"{entry.id}: fixed_in is {patch.fixed_in}, but {patch.continued_by} continues it"]
    following = registry.catalogue().get(patch.continued_by or "")
    if following is None or not _by_deepspeed(following.patch, after):
        return [f"{entry.id}: {patch.continued_by} is to continue it, but is no patch for {after}"]
    return []


def _by_deepspeed(patch: Patch, release: str) -> bool:
    return SpecifierSet(patch.affects.get("deepspeed", "")).contains(release)


def _row(patch_id: str, cells: Sequence[Judged], mismatches: int) -> tuple[str, ...]:
    outside = [cell.source.outcome for cell in cells if not cell.inside]
    return (
        patch_id,
        str(mismatches or "none"),
        str(len(cells) - len(outside)),
        str(outside.count(Outcome.ALREADY_FIXED)),
        str(outside.count(Outcome.NOT_AFFECTED)),
        f"{sum(cell.seconds for cell in cells):.1f}",
        table.span([cell.release for cell in cells if cell.inside], [cell.release for cell in cells]) or "nothing here",
    )


def _progress() -> Callable[[int, int], None]:
    def finished(done: int, of: int) -> None:
        end = "\n" if done == of else ""
        print(f"\r{done} of {of} releases", end=end, file=sys.stderr, flush=True)

    return finished if sys.stderr.isatty() else lambda done, of: None
