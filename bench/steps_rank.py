"""One rank of a job whose steps are timed; `main` is called in a separate process."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsfix.lab import Lab
from matrix.bystanders.watch import Watch

#: Runs the step with that number and returns its CPU seconds.
Step = Callable[[int], float]
_WARM_UP = 10  # steps; the first ones allocate


def main(setting: str, steps: str, directory: str) -> int:
    """Write the CPU seconds of each step of a common training job. Returns 0."""
    return train(setting, directory, lambda step: [step(number) for number in range(int(steps))])


def train(setting: str, directory: str, measure: Callable[[Step], Any]) -> int:
    """Warm up a common training job and write the result of `measure`. Returns 0."""
    with Lab("cuda") as lab:
        assert lab.deepspeed
        from matrix.bystanders.job import Job

        job = Job(lab, json.loads(setting), plain=False)
        job._lab_unseen = Watch().unseen
        engine = job.engine(job.MLP(depth=6))
        batches = [job.batches(step) for step in range(8)]

        def step(number: int) -> float:
            started = time.process_time()
            for batch in batches[number % len(batches)]:
                engine.backward(job.loss(engine, batch))
                engine.step()
            return time.process_time() - started

        gc.collect()
        gc.disable()
        for number in range(_WARM_UP):
            step(number)
        found = measure(step)
        path = Path(directory, f"{lab.rank}.json")
        path.with_suffix(".partial").write_text(json.dumps(found))
        os.replace(path.with_suffix(".partial"), path)
        return 0
