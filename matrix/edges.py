"""``python -m matrix edges``: run the cells at the ends of each patch's range, in this Python's environment."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from packaging.version import Version

from dsfix.catalogue.registry import Entry
from dsfix.cli.audit import schedule
from dsfix.cli.exits import OK, TROUBLE
from dsfix.patch import Patch
from matrix import environments, proofs, runner, table
from matrix.cells import Cells, Task
from matrix.proofs import Cell, State
from matrix.source_proof import chosen
from matrix.table import Environment

NAME = "edges"
HELP = "run the last affected release of each patch; records nothing"
_ANSWERS = (State.FIXED, State.NOT_AFFECTED)
_CHECKOUT = Path(__file__).resolve().parents[1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--patch", nargs="+", metavar="ID", help="only these patches")
    parser.add_argument("--one-in", type=runner.jobs, default=1, metavar="N", help="only every Nth patch")
    parser.add_argument(
        "--latest", type=int, default=0, metavar="N", help="with --one-in: also the N most recently changed patches"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="also the first affected release, the unaffected neighbours and the newest release",
    )
    parser.add_argument(
        "--schedule",
        type=schedule,
        metavar="NAME",
        help="schedule of the emulated device (late, ahead, early, random:SEED) in the runs with the patch; the runs "
        "without it are taken from the record",
    )
    parser.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="cells in parallel")


def edges(patch: Patch, environment: Environment, releases: Sequence[str]) -> list[str]:
    """The releases at which the claim begins or ends, with their unclaimed neighbours, in order.

    Includes the first release if it is claimed, and always the last.
    """
    inside = [claimed(patch, environment, release) for release in releases]
    at_edges = []
    for number, release in enumerate(releases):
        neighbours = [inside[i] for i in (number - 1, number + 1) if 0 <= i < len(releases)]
        first = number == 0 and inside[number]
        if first or number == len(releases) - 1 or any(neighbour != inside[number] for neighbour in neighbours):
            at_edges.append(release)
    return at_edges


def range_ends(patch: Patch, environment: Environment, releases: Sequence[str]) -> list[str]:
    """The first and the last claimed release, and the nearest unclaimed one after them, else before them, in order."""
    inside = [number for number, release in enumerate(releases) if claimed(patch, environment, release)]
    if not inside:
        return []
    first, last = inside[0], inside[-1]
    beyond = last + 1 if last + 1 < len(releases) else first - 1
    return [releases[number] for number in sorted({first, last, beyond}) if number >= 0]


def claimed_and_neighbours(patch: Patch, environment: Environment, releases: Sequence[str]) -> list[str]:
    """The claimed releases, the two on either side of them, and the last release, in order."""
    inside = [number for number, release in enumerate(releases) if claimed(patch, environment, release)]
    indices = {number + step for number in inside for step in range(-2, 3)} | {len(releases) - 1}
    return [release for number, release in enumerate(releases) if number in indices]


def required(patch: Patch, environment: Environment, releases: Sequence[str]) -> list[str]:
    """The releases to run again after the patch has changed: the edges and the last claimed release of each minor."""
    last = {Version(each).release[:2]: each for each in releases if claimed(patch, environment, each)}
    wanted = {*edges(patch, environment, releases), *last.values()}
    return [release for release in releases if release in wanted]


def claimed(patch: Patch, environment: Environment, release: str) -> bool:
    """Whether the patch claims the release in that environment."""
    versions = {**environment.distributions, "python": environment.python, "deepspeed": release}
    return proofs.inside(patch, versions)


def latest(count: int, known: Collection[str], checkout: Path = _CHECKOUT) -> list[str]:
    """The patches changed by the most recent commits, newest first; empty without git history."""
    log = ["git", "-C", str(checkout), "log", "--format=", "--name-only", "--diff-filter=AM", "--", "patches/*.py"]
    try:
        done = subprocess.run(log, capture_output=True, text=True)
    except OSError:  # no git
        return []
    stems = (Path(line).stem for line in done.stdout.splitlines())
    return list(dict.fromkeys(stem for stem in stems if stem in known))[:count]  # not those removed since


def sample(entries: Sequence[Entry], one_in: int, ids: Sequence[str]) -> list[Entry]:
    """Every Nth patch, and those with these ids, in order."""
    return [each for number, each in enumerate(entries) if number % one_in == 0 or each.id in ids]


def run(options: argparse.Namespace) -> int:
    """0 if no cell contradicts a claim; 1 if one does or could not be run. Raises CommandError."""
    environment = environments.current(table.load())
    gpu = environments.gpu()
    releases = [release.deepspeed for release in table.load().run_in(environment.name)]
    entries = chosen(options.patch)
    entries = sample(entries, options.one_in, latest(options.latest, [each.id for each in entries]))
    if options.schedule:
        entries = [entry for entry in entries if entry.patch.device == "cuda"]

    def recorded(entry: Entry, release: str) -> Cell | None:
        return proofs.load(entry).cell(proofs.column(environment.name, gpu, entry), release)

    tasks = []
    for entry in entries:
        wanted = edges(entry.patch, environment, releases)
        if not options.whole:
            wanted = [release for release in wanted if claimed(entry.patch, environment, release)][-1:]
        for release in wanted:
            before = recorded(entry, release) if options.schedule else None
            tasks.append(Task(entry, release, None if before is None else before.without))
    bad = 0
    with Cells(options.schedule or "") as cells, runner.run_parallel(tasks, cells.attempt, options.jobs) as ended:
        for task, cell in ended:
            entry, release = task.entry, task.release
            if isinstance(cell, str):
                print(f"{entry.id} on deepspeed {release}: {cell}", flush=True)
                bad += 1
                continue
            print(proofs.sentence(entry.id, release, entry.patch, cell), flush=True)
            state = proofs.judge(entry.patch, cell)[0]
            known = proofs.judge(entry.patch, recorded(entry, release))[0] in _ANSWERS
            bad += state is State.WRONG or (state is State.CANNOT_TELL and known)
    print(f"{len(tasks)} cells at the edges, {bad} of them wrong or without the recorded answer")
    return TROUBLE if bad else OK
