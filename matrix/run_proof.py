"""``python -m matrix run``: run the cells that have no result in the record, in this Python's environment."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsfix.cli.exits import INTERRUPTED, OK, TROUBLE, CommandError
from matrix import environments, fingerprints, proofs, runner, table
from matrix.cells import Cells, Task
from matrix.edges import claimed_and_neighbours, range_ends, required
from matrix.proofs import Cell, State
from matrix.runner import Progress
from matrix.source_proof import chosen
from matrix.table import Environment

NAME = "run"
HELP = "run the cells of this environment that have no result in the record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--patch", nargs="+", metavar="ID", help="only these patches")
    parser.add_argument("--release", nargs="+", metavar="X", help="only these DeepSpeed releases")
    parser.add_argument(
        "--near",
        action="store_true",
        help="only the cells that the record must have: the releases that a patch claims, two on either side, and the "
        "newest; after a change of the patch, the edges of its range and the last release of each minor",
    )
    parser.add_argument("--jobs", type=runner.jobs, default=os.cpu_count() or 1, metavar="N", help="cells in parallel")
    parser.add_argument("--again", action="store_true", help="rerun cells that are in the record")


def run(options: argparse.Namespace) -> int:
    """0 if all cells are recorded and none is wrong, else 1; 130 if interrupted. Raises CommandError."""
    environment = environments.current(table.load())
    entries = chosen(options.patch)
    gpu = environments.gpu()
    columns = {entry.id: proofs.column(environment.name, gpu, entry) for entry in entries}
    releases, every = _releases(environment, options.release), _releases(environment, None)
    asked = [Task(entry, release) for release in releases for entry in entries]
    if environment.name != next(iter(table.load().environments)) and not options.release:
        at_ends = {entry.id: range_ends(entry.patch, environment, every) for entry in entries}
        asked = [task for task in asked if task.release in at_ends[task.entry.id]]
    elif options.near:
        close = {entry.id: claimed_and_neighbours(entry.patch, environment, every) for entry in entries}
        rerun = {entry.id: required(entry.patch, environment, every) for entry in entries}
        asked = [
            task
            for task, cell in _recorded(asked, columns)
            if task.release in (close if cell is None else rerun)[task.entry.id]
        ]
    tasks = asked
    if not options.again:
        tasks = [_unanswered(task, cell) for task, cell in _recorded(asked, columns) if not _answered(task, cell)]
    print(f"{environment.name}: {len(asked)} cells, {len(tasks)} to run, {options.jobs} in parallel", flush=True)
    done: list[Task] = []
    trouble: dict[str, None] = {}
    try:
        _run(tasks, columns, options.jobs, done, trouble)
    except KeyboardInterrupt:
        print(f"matrix: interrupted; {len(done)} of {len(tasks)} cells were run and recorded", file=sys.stderr)
        return INTERRUPTED
    print(f"{len(done)} of {len(tasks)} cells were run.")
    return _sum_up(_recorded(asked, columns), list(trouble))


def _releases(environment: Environment, names: Sequence[str] | None) -> list[str]:
    known = [each.deepspeed for each in table.load().run_in(environment.name)]
    for name in names or ():
        if name not in known:
            raise CommandError(f"the table does not list deepspeed {name} for {environment.name}")
    return [each for each in known if not names or each in names]


def _recorded(tasks: Sequence[Task], columns: Mapping[str, str]) -> list[tuple[Task, Cell | None]]:
    entries = {task.entry.id: task.entry for task in tasks}
    records = {patch_id: proofs.load(entry) for patch_id, entry in entries.items()}
    return [(task, records[task.entry.id].cell(columns[task.entry.id], task.release)) for task in tasks]


def _answered(task: Task, cell: Cell | None) -> bool:
    """Whether the record has a conclusive result for this version; "cannot tell" may depend on the machine."""
    if cell is not None and cell.earlier:
        return False
    return proofs.judge(task.entry.patch, cell)[0] in (State.FIXED, State.NOT_AFFECTED)


def _unanswered(task: Task, cell: Cell | None) -> Task:
    """The task; with the known run without the patch, if only the patch has changed and not its reproduction."""
    if cell is None or not cell.earlier or cell.earlier.reproduction != fingerprints.of(task.entry).reproduction:
        return task
    return replace(task, without=cell.without)


def _run(
    tasks: Sequence[Task], columns: Mapping[str, str], jobs: int, done: list[Task], trouble: dict[str, None]
) -> None:
    """Run and record the cells; `done` collects those recorded, `trouble` why the others are not."""
    entries = {task.entry.id: task.entry for task in tasks}
    started = {patch_id: fingerprints.of(entry) for patch_id, entry in entries.items()}
    meter = Progress(len(tasks))
    with Cells() as cells, runner.run_parallel(tasks, cells.attempt, jobs) as ended:
        for task, cell in ended:
            entry = task.entry
            if isinstance(cell, str):
                trouble[cell] = None
            elif fingerprints.of(entry) != started[entry.id]:
                trouble[f"{entry.id} was changed during the run: run it again"] = None
            else:
                proofs.store(entry, columns[entry.id], task.release, cell)
                done.append(task)
                if proofs.judge(entry.patch, cell)[0] is State.WRONG:
                    meter.say(proofs.sentence(entry.id, task.release, entry.patch, cell))
            meter.advance()


def _sum_up(recorded: Sequence[tuple[Task, Cell | None]], trouble: Sequence[str]) -> int:
    counts: Counter[State] = Counter()
    for task, cell in recorded:
        state, _ = proofs.judge(task.entry.patch, cell)
        counts[state] += 1
        if state is State.WRONG:
            print(proofs.sentence(task.entry.id, task.release, task.entry.patch, cell))
    for sentence in trouble:
        print(sentence)
    print(", ".join(f"{counts[state]} {state.value}" for state in State if counts[state]) or "no cells")
    return TROUBLE if trouble or counts[State.WRONG] or counts[State.NOT_RUN] else OK
