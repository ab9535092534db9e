"""One rank of a job in which one patch is taken out and put back between steps: `main` is called in its own process."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bystanders.watch import Watch
from dsfix import engine, process
from dsfix.lab import Lab

_WARM_UP = 10  # steps: the first ones allocate
_MARKED = 6  # steps whose marks are told
_BLOCK = 5  # steps with the patch, then as many without, or the other way round


def main(setting: str, patch_id: str, pairs: str, directory: str) -> int:
    """Write what `patch_id` adds to a step, one ratio for each pair of blocks; "" for the ids whose lines a step runs."""
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
        found = _ratios(step, patch_id, int(pairs)) if patch_id else _through(step)
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


def _ratios(step: Callable[[int], float], patch_id: str, pairs: int) -> list[float]:
    assert process._engine is not None
    every = process._engine
    state = every.states[patch_id]

    there = True

    def block(wanted: bool) -> float:
        """The median of its steps, with the patch or without."""
        nonlocal there
        if wanted and not there:
            state.done.update({n: engine.apply(state.entry, sys.modules[n], every.memory) for n in state.done})
        elif there and not wanted:
            for handle in (each for handles in state.done.values() for each in reversed(handles)):
                handle.undo()
        there = wanted
        step(0)  # what is new about the code is over
        return statistics.median(step(number) for number in range(_BLOCK))

    found = []
    gc.collect()
    gc.disable()
    for pair in range(pairs):
        taken = {wanted: block(wanted) for wanted in ((True, False) if pair % 2 else (False, True))}
        found.append(taken[True] / taken[False])
    return found
