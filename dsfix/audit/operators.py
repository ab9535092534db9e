"""Compiles DeepSpeed's CPU optimizers before the ranks start, outside their time limit.

DeepSpeed compiles them on first use. A process killed while compiling leaves a lock file that all later processes wait
for forever.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dsfix.audit.plan import Plan
from dsfix.lab.accelerator import deepspeed_version
from dsfix.lab.cuda.compiling import locked
from dsfix.lab.distributions import torch_build
from dsfix.lab.ranks import fresh_command, launch
from dsfix.lab.session import Lab
from dsfix.settings import cache_directory

_SECONDS = 900.0  # a minute on two free cores
# the config's optimizer -> operator, module and class that uses it
_OPERATORS = {
    "adam": ("cpu_adam", "deepspeed.ops.adam", "DeepSpeedCPUAdam"),
    "adamw": ("cpu_adam", "deepspeed.ops.adam", "DeepSpeedCPUAdam"),
    "adagrad": ("cpu_adagrad", "deepspeed.ops.adagrad", "DeepSpeedCPUAdagrad"),
}


def needed(plan: Plan) -> str:
    """The operator that DeepSpeed would compile to train `plan`, `cpu_adam` for example; "" if none."""
    section = plan.config.get("optimizer") or {}
    offload = plan.config.get("zero_optimization", {}).get("offload_optimizer") or {}
    own = plan.optimizer or (section.get("params") or {}).get("torch_adam")
    if own or offload.get("device", "none") == "none":
        return ""
    return _OPERATORS.get(str(section.get("type")).lower(), ("",))[0]


def build(
    plan: Plan, environment: Mapping[str, str], work: Path, command: Callable[[str], Sequence[str]] = fresh_command
) -> None:
    """Compiles what `plan` needs unless it is already built. Errors are ignored: the ranks will report them.

    environment, work, command: those of the ranks.
    """
    if needed(plan):
        name = str(plan.config["optimizer"]["type"]).lower()
        jobs = str(min(os.cpu_count() or 1, 4))
        launch([*command(__name__), plan.device, name], 1, _SECONDS, {**environment, "MAX_JOBS": jobs}, work)


def _current(directory: Path) -> bool:
    """Whether the build is up to date: a killed build, or one for a different torch, also leaves a library."""
    try:
        plan = (directory / "build.ninja").read_text(encoding="utf-8")
        dry_run = subprocess.run(["ninja", "-C", str(directory), "-n"], capture_output=True, text=True)
    except OSError:
        return False
    return f"{torch_build().directory}{os.sep}" in plan and "no work to do" in dry_run.stdout


def main(device: str, optimizer: str) -> int:
    operator, module, name = _OPERATORS[optimizer]
    extensions = cache_directory() / f"extensions-deepspeed{deepspeed_version()}-torch{torch_build().version}"
    directory = Path(os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(extensions))) / operator
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "dsfix.lock"):
        left = directory / "lock"  # left by a killed process: dsfix's own processes wait for the other lock
        if left.exists() or not _current(directory):
            left.unlink(missing_ok=True)
            with Lab(device) as lab:
                assert lab.deepspeed
                getattr(importlib.import_module(module), name)([lab.torch.nn.Parameter(lab.torch.zeros(1))])
    return 0
