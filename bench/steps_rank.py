"""One rank of a job whose steps are timed; `main` is called in a separate process."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

from dsfix.lab import Lab
from matrix.bystanders.watch import Watch

_WARM_UP = 10  # steps; the first ones allocate


def main(setting: str, steps: str, parameters: str, directory: str) -> int:
    """Write the CPU seconds of each step of a common job, or of a module with many parameters. Returns 0."""
    with Lab("cuda") as lab:
        assert lab.deepspeed
        from matrix.bystanders.job import Job

        job = Job(lab, json.loads(setting), plain=False)
        job._lab_unseen = Watch().unseen
        engine = job.engine(_of_many(job, int(parameters)) if int(parameters) else job.MLP(depth=6))
        batches = [job.batches(step) for step in range(8)]

        def step(number: int) -> float:
            started = time.process_time()
            for batch in batches[number % len(batches)]:
                engine.backward(job.loss(engine, batch))
                engine.step()
            return time.process_time() - started

        gc.collect()
        gc.disable()
        for number in range(2 if int(parameters) else _WARM_UP):
            step(number)
        found = [step(number) for number in range(int(steps))]
        path = Path(directory, f"{lab.rank}.json")
        path.with_suffix(".partial").write_text(json.dumps(found))
        os.replace(path.with_suffix(".partial"), path)
        return 0


def _of_many(job: Any, parameters: int) -> Any:
    def forward(module: Any, x: Any) -> Any:
        return (x @ job.torch.stack([*module.parameters()]).t()).tanh().mean(dim=1, keepdim=True)

    weight = job.torch.ones(16) / parameters
    return job.model(forward, **{f"w{n}": job.torch.nn.Parameter(weight.clone()) for n in range(parameters)})
