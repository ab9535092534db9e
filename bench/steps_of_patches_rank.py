"""One rank of a job in which one patch is taken out and put back between steps: `main` is called in its own process."""

from __future__ import annotations

import sys

from steps_rank import Step, train

from dsfix.engine import engine, process

_MARKED = 6  # steps whose marks are told
_BLOCK = 8  # steps with the patch, then as many without, or the other way round
_TURNS = 4  # so often for a ratio


def main(setting: str, patch_id: str, rounds: str, directory: str) -> int:
    """Write what `patch_id` adds to a step, a ratio for each round; for "" the ids whose lines a step runs."""
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
    for _ in range(rounds):
        taken: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(_TURNS):
            for wanted in (True, False) if turn % 2 else (False, True):
                taken[wanted].append(fastest(wanted))
        found.append(min(taken[True]) / min(taken[False]))
    return found
