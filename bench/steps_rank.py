"""One rank of a job whose steps are timed: `main` is called in a process of its own."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path

from bystanders.watch import Watch
from dsfix.lab import Lab

_WARM_UP = 5  # steps: the first ones allocate


def main(setting: str, steps: str, directory: str) -> int:
    """Write the CPU seconds of each step of a usual training."""
    with Lab("cuda") as lab:
        assert lab.deepspeed
        from bystanders.job import Job

        job = Job(lab, json.loads(setting), plain=False)
        job._lab_unseen = Watch().unseen
        engine = job.engine(job.MLP(depth=6))
        batches = [job.batches(step) for step in range(8)]
        seconds = []
        gc.collect()
        gc.disable()
        for step in range(_WARM_UP + int(steps)):
            started = time.process_time()
            for batch in batches[step % len(batches)]:
                engine.backward(job.loss(engine, batch))
                engine.step()
            seconds.append(time.process_time() - started)
        path = Path(directory, f"{lab.rank}.json")
        path.with_suffix(".partial").write_text(json.dumps(seconds[_WARM_UP:]))
        os.replace(path.with_suffix(".partial"), path)
        return 0
