"""What all patches together add to a step on a GPU: a ratio of wall-clock time per setting.

    python bench/steps_gpu.py [--rounds N]

Runs the installed DeepSpeed and dsfix, one rank, on the machine's first GPU. A round trains each setting without and
with the patches, in separate processes by turns. Reports the median step without, and the median and range of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

_WARM_UP, _STEPS = 10, 60
_TIMEOUT = 120.0  # seconds
_OFFLOAD = {"device": "cpu", "pin_memory": True}
#: Name -> layers, width, tokens in a micro-batch, and the config. Small models show what Python adds.
SETTINGS: Mapping[str, tuple[int, int, int, Mapping[str, Any]]] = {
    "small, stage 0, fp32": (24, 64, 32, {}),
    "small, stage 1, bf16": (24, 64, 32, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}),
    "small, stage 2, fp16": (24, 64, 32, {"fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}),
    "small, stage 3, bf16": (24, 64, 32, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}),
    "small, stage 3, bf16, optimizer offload": (
        24,
        64,
        32,
        {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "offload_optimizer": _OFFLOAD}},
    ),
    "large, stage 2, bf16": (16, 4096, 4096, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}),
    "large, stage 3, bf16": (16, 4096, 4096, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}),
}


def train(setting: str, patched: bool) -> float:
    """Seconds of a step, its median, in this process."""
    if patched:
        import dsfix  # noqa: F401
    import deepspeed
    import torch

    layers, width, tokens, config = SETTINGS[setting]
    deepspeed.init_distributed("nccl")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(layers))
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_force_ds_cpu_optimizer": False,
            **config,
        },
    )
    data = torch.randn(tokens, width, device="cuda", dtype=next(engine.parameters()).dtype)
    taken = []
    for _ in range(_WARM_UP + _STEPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        engine.backward(engine(data).float().pow(2).mean())
        engine.step()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[_WARM_UP:])


def seconds(setting: str, patched: bool, port: int) -> float:
    """The same in a process of its own."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    argv = [sys.executable, __file__, "--one", setting, *(["--patched"] if patched else [])]
    done = subprocess.run(argv, env={**os.environ, **rank}, capture_output=True, text=True, timeout=_TIMEOUT)
    if done.returncode:
        sys.exit(f"steps_gpu: {setting}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--one", choices=SETTINGS, help=argparse.SUPPRESS)
    parser.add_argument("--patched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(options.one, options.patched)))
        return 0
    found: dict[str, list[tuple[float, float]]] = {each: [] for each in SETTINGS}
    port = 29600
    for number in range(options.rounds):
        for setting, pairs in found.items():
            taken = {}
            for patched in (True, False) if number % 2 else (False, True):
                port += 1
                taken[patched] = seconds(setting, patched, port)
            pairs.append((taken[False], taken[True]))
    print("| setting | ms without | ratio | range |", "| --- | --- | --- | --- |", sep="\n")
    for setting, pairs in found.items():
        ratios = [patched / without for without, patched in pairs]
        base = 1000 * statistics.median(without for without, _ in pairs)
        print(f"| {setting} | {base:.2f} | {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
