"""A rank that trains on demand: ``python bench/soak/trains.py``, with a number of steps per line of standard input.

ZeRO-3 with optimizer offload and gradient clipping, on the emulated CUDA device or a GPU: the job of
zero3_offload_clip_device, whose edit runs in every step. Answers each line with the CPU time of the steps, the resident
memory and the number of Python objects.
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
