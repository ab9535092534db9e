"""DeepSpeed's CPU optimizers are compiled when first used: done once, ahead of the ranks and outside their time limit.

A process that is killed while it compiles leaves a lock file, for which all later ones would wait without end.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dsfix.audit.plan import Plan
from dsfix.engine.cache import cache_directory
from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.cuda.compiling import locked
from dsfix.lab.distributions import torch_build
from dsfix.lab.launcher import fresh, launch
from dsfix.lab.session import Lab

_SECONDS = 900.0  # a minute on two free cores
# the config's optimizer -> the operator, the module and the class that uses it
_OPERATORS = {
    "adam": ("cpu_adam", "deepspeed.ops.adam", "DeepSpeedCPUAdam"),
    "adamw": ("cpu_adam", "deepspeed.ops.adam", "DeepSpeedCPUAdam"),
    "lion": ("cpu_lion", "deepspeed.ops.lion", "DeepSpeedCPULion"),
    "adagrad": ("cpu_adagrad", "deepspeed.ops.adagrad", "DeepSpeedCPUAdagrad"),
}


def build(plan: Plan, environment: Mapping[str, str], work: Path) -> None:
    """Compiles what `plan` needs, where it is not there yet. What goes wrong, the ranks will meet and tell.

    environment, work: those of the ranks.
    """
    section = plan.config.get("optimizer") or {}
    offload = plan.config.get("zero_optimization", {}).get("offload_optimizer") or {}
    name = str(section.get("type")).lower()
    own = plan.optimizer or (section.get("params") or {}).get("torch_adam")
    if not own and offload.get("device", "none") != "none" and name in _OPERATORS:
        launch([*fresh(__name__), plan.device, name], 1, _SECONDS, environment, work)


def _current(directory: Path) -> bool:
    """Whether nothing is to be compiled: a build that was killed, or one for another torch, leaves a library, too."""
    try:
        plan = (directory / "build.ninja").read_text(encoding="utf-8")
        told = subprocess.run(["ninja", "-C", str(directory), "-n"], capture_output=True, text=True)
    except OSError:
        return False
    return f"{torch_build().directory}{os.sep}" in plan and "no work to do" in told.stdout


def main(device: str, optimizer: str) -> int:
    """In a process of its own."""
    operator, module, name = _OPERATORS[optimizer]
    extensions = cache_directory() / f"extensions-deepspeed{deepspeed_version()}-torch{torch_build().version}"
    directory = Path(os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(extensions))) / operator
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "dsfix.lock"):
        left = directory / "lock"  # of a process that was killed: all of dsfix's wait at the other lock
        if left.exists() or not _current(directory):
            left.unlink(missing_ok=True)
            with Lab(device) as lab:
                assert lab.deepspeed
                getattr(importlib.import_module(module), name)([lab.torch.nn.Parameter(lab.torch.zeros(1))])
    return 0
