"""One rank of a job in which one patch is reverted and reapplied between steps; `main` is called in its own process."""

from __future__ import annotations

import sys

from steps_rank import Step, train

from dsfix import process
from dsfix.engine import engine

_MARKED = 6  # steps in which the lines that run are recorded
_BLOCK = 8  # steps with the patch, then as many without, or vice versa
_TURNS = 4  # pairs of blocks per ratio


def main(setting: str, patch_id: str, rounds: str, directory: str) -> int:
    """Write a ratio per round for `patch_id`; for "", the ids of the patches whose lines a step runs. Returns 0."""
    return train(setting, directory, lambda step: _ratios(step, patch_id, int(rounds)) if patch_id else _through(step))


def _through(step: Step) -> list[str]:
    from matrix.bystanders import hits

    for numbers in hits.run.values():
        numbers.clear()
    for number in range(_MARKED):
        step(number)
    return sorted(patch_id for patch_id, numbers in hits.run.items() if numbers)


def _ratios(step: Step, patch_id: str, rounds: int) -> list[float]:
    assert process._engine is not None
    every = process._engine
    state = every.states[patch_id]
    applied = True

    def fastest(wanted: bool) -> float:
        """The fastest of a block's steps, with the patch or without: other load can only add time."""
        nonlocal applied
        if wanted and not applied:
            for place in state.done:
                state.done[place] = engine.apply(patch_id, state.patch, sys.modules[place.name], every.cache)
        elif applied and not wanted:
            for handle in (each for handles in state.done.values() for each in reversed(handles)):
                handle.undo()
        applied = wanted
        step(0)  # warms up the changed code
        return min(step(number) for number in range(_BLOCK))

    found = []
    for _ in range(rounds):
        taken: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(_TURNS):
            for wanted in (True, False) if turn % 2 else (False, True):
                taken[wanted].append(fastest(wanted))
        found.append(min(taken[True]) / min(taken[False]))
    return found
