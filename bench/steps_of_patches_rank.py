"""One rank of a job in which one patch is taken out and put back between steps: `main` is called in its own process."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bystanders.watch import Watch
from dsfix import engine, process
from dsfix.lab import Lab

_WARM_UP = 10  # steps: the first ones allocate
_MARKED = 6  # steps whose marks are told
_BLOCK = 8  # steps with the patch, then as many without, or the other way round
_TURNS = 4  # so often for a ratio


def main(setting: str, patch_id: str, rounds: str, directory: str) -> int:
    """Write what `patch_id` adds to a step, a ratio for each round; for "" the ids whose lines a step runs."""
    with Lab("cuda") as lab:
        assert lab.deepspeed
        from bystanders.job import Job

        job = Job(lab, json.loads(setting), plain=False)
        job._lab_unseen = Watch().unseen
        trained = job.engine(job.MLP(depth=6))
        batches = [job.batches(step) for step in range(8)]

        def step(number: int) -> float:
            started = time.process_time()
            for batch in batches[number % len(batches)]:
                trained.backward(job.loss(trained, batch))
                trained.step()
            return time.process_time() - started

        for number in range(_WARM_UP):
            step(number)
        found = _ratios(step, patch_id, int(rounds)) if patch_id else _through(step)
        path = Path(directory, f"{lab.rank}.json")
        path.with_suffix(".partial").write_text(json.dumps(found))
        os.replace(path.with_suffix(".partial"), path)
        return 0


def _through(step: Callable[[int], float]) -> list[str]:
    from bystanders import hits

    for numbers in hits.run.values():
        numbers.clear()
    for number in range(_MARKED):
        step(number)
    return sorted(patch_id for patch_id, numbers in hits.run.items() if numbers)


def _ratios(step: Callable[[int], float], patch_id: str, rounds: int) -> list[float]:
    assert process._engine is not None
    every = process._engine
    state = every.states[patch_id]

    there = True

    def fastest(wanted: bool) -> float:
        """Of a block's steps, with the patch or without: what else the machine does can only add."""
        nonlocal there
        if wanted and not there:
            state.done.update({n: engine.apply(state.entry, sys.modules[n], every.memory) for n in state.done})
        elif there and not wanted:
            for handle in (each for handles in state.done.values() for each in reversed(handles)):
                handle.undo()
        there = wanted
        step(0)  # what is new about the code is over
        return min(step(number) for number in range(_BLOCK))

    found = []
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        taken: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(_TURNS):
            for wanted in (True, False) if turn % 2 else (False, True):
                taken[wanted].append(fastest(wanted))
        found.append(min(taken[True]) / min(taken[False]))
    return found
