"""A pytest plugin: the ranks of DeepSpeed's tests are forked from pytest, which has imported torch and DeepSpeed.

Otherwise each test starts a process that imports both again, which takes longer than the test.
"""

from __future__ import annotations

import importlib
from typing import Any


def pytest_collection_finish() -> None:
    processes: Any = importlib.import_module("torch.multiprocessing")
    start_method = processes.set_start_method
    processes.set_start_method = lambda method, force=False: start_method("fork", force=True)
