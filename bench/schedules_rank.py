"""One rank of a job whose steps are timed on the emulated device; `main` is called in a separate process.

Also runs with an earlier dsfix, so it uses no more of the lab than it needs.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from dsfix.lab import Lab

_WARM_UP, _STEPS = 10, 40
_WIDTH, _DEPTH = 16, 6


def main(stage: str, directory: str) -> int:
    """Write the CPU seconds of each step of a training with that ZeRO stage. Returns 0."""
    with Lab("cuda") as lab:
        torch = lab.torch
        layers = [each for _ in range(_DEPTH) for each in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh())]
        model = torch.nn.Sequential(*layers)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            **({"zero_optimization": {"stage": int(stage), "overlap_comm": True}} if stage != "0" else {}),
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        batch = torch.randn(4, _WIDTH).to(lab.device)
        taken = []
        for _ in range(_WARM_UP + _STEPS):
            started = time.process_time()
            engine.backward(engine(batch).square().mean())
            engine.step()
            torch.cuda.synchronize()  # what waits is part of the step
            taken.append(time.process_time() - started)
        path = Path(directory, f"{lab.rank}.json")
        path.with_suffix(".partial").write_text(json.dumps(taken[_WARM_UP:]))
        os.replace(path.with_suffix(".partial"), path)
        return 0
