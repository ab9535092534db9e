"""The machine that runs the folder. `main` prints its facts as JSON; it imports torch."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsfix import versions
from dsfix.lab import accelerator
from dsfix.lab.cuda import compiling
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.ranks import fresh_command

_DISTRIBUTIONS = ("torch", "numpy", "pydantic", "python", "dsfix")
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


@dataclass(frozen=True)
class Machine:
    """device: the GPU's name, or that of the emulated device, of which each rank has its own."""

    device: str
    emulated: bool
    gpus: int
    cores: int
    cuda: str
    nccl: str
    driver: str
    versions: dict[str, str]

    def command(self, module: str, ranks: int) -> Sequence[str]:
        """As `fresh`, for a job of so many ranks: if they are more than the GPUs, they share the first."""
        return (
            fresh_command(module)
            if self.emulated or ranks <= self.gpus
            else (*fresh_command("matrix.gpu.one_gpu"), module)
        )


def main() -> int:
    """1, with a sentence on standard error, if no device is available."""
    try:
        print(json.dumps(asdict(_machine())))
    except LabUnavailable as error:
        print(f"no GPU that torch can use, and no emulated CUDA device: {error}", file=sys.stderr)
        return 1
    return 0


def _machine() -> Machine:
    emulated = not accelerator.has_gpu()
    if emulated:
        compiling.library()
    import torch

    nccl: Any = () if emulated else torch.cuda.nccl.version()  # type: ignore[no-untyped-call,unused-ignore]
    return Machine(
        device=accelerator.EMULATED if emulated else str(torch.cuda.get_device_name()),
        emulated=emulated,
        gpus=0 if emulated else torch.cuda.device_count(),
        cores=len(os.sched_getaffinity(0)),
        cuda=str(torch.version.cuda or ""),
        nccl=".".join(map(str, nccl)),
        driver="" if emulated else _driver(),
        versions={
            **{name: versions.installed(name) or "" for name in _DISTRIBUTIONS},
            "python": platform.python_version(),
        },
    )


def _driver() -> str:
    if shutil.which(_DRIVER[0]) is None:
        return ""
    done = subprocess.run(_DRIVER, capture_output=True, text=True)
    return (done.stdout.splitlines() or [""])[0].strip()
