"""A pytest plugin for DeepSpeed's tests: their ranks are forked from pytest, which has imported torch and DeepSpeed.

On the CPU collectives in shared memory, which need compiling, are left to gloo. Nothing of dsfix is loaded here.
"""

from __future__ import annotations

import importlib
from typing import Any


def pytest_collection_finish() -> None:
    processes: Any = importlib.import_module("torch.multiprocessing")
    start_method = processes.set_start_method
    processes.set_start_method = lambda method, force=False: start_method("fork", force=True)
    accelerator: Any = importlib.import_module("deepspeed.accelerator").get_accelerator()
    if accelerator.device_name() == "cpu":
        create = accelerator.create_op_builder
        accelerator.create_op_builder = lambda name: None if name == "ShareMemCommBuilder" else create(name)
