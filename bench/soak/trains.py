"""A rank that trains on demand: ``python bench/soak/trains.py``, and a number of steps on each line of standard input.

ZeRO-3 with the optimizer offloaded and gradients clipped, on the emulated CUDA device or a GPU: the job of the founding
bug, whose edit is reached in every step. Each line is answered with the CPU time that the steps took, the resident
memory and the number of Python objects that then are there.
"""

import dsfix  # isort: skip
import gc
import json
import os
import sys
import time

from dsfix.lab import Lab

with Lab() as lab:
    torch = lab.torch
    deepspeed = lab.deepspeed
    from dsfix.lab.models import MLP, regression_batch

    engine = lab.initialize(
        MLP(),
        {
            "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
            "gradient_clipping": 1e-3,
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        },
    )
    applied = sum(each.outcome is dsfix.Outcome.APPLIED for each in dsfix.report())
    print(json.dumps({"deepspeed": deepspeed.__version__, "device": lab.device_name, "applied": applied}), flush=True)
    step = 0
    for line in sys.stdin:
        started = time.process_time()
        for _ in range(int(line)):
            inputs, targets = (each.to(lab.device) for each in regression_batch(0, step, size=1))
            engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
            engine.step()
            step += 1
        seconds = time.process_time() - started
        gc.unfreeze()
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as file:
            memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        print(json.dumps({"seconds": seconds, "memory": memory, "objects": len(gc.get_objects())}), flush=True)
