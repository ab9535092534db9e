"""The pytest plug-in of processes started by `dsfix.testing.apart`: sets up the device before torch is imported."""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from dsfix.lab import accelerator, cuda_device, rank_variables
from dsfix.lab.errors import LabUnavailable
from dsfix.patch import CannotTell
from dsfix.settings import write_whole

_DEVICE, _DIRECTORY = "DSFIX_TESTING_DEVICE", "DSFIX_TESTING_DIRECTORY"

# removed: a process that the test starts is not one of its ranks
device, _directory = os.environ.pop(_DEVICE, ""), os.environ.pop(_DIRECTORY, "")
"""This rank's device, "" in a process that is not a rank of a test."""


def variables(device: str, directory: str) -> dict[str, str]:
    """The variables that make a process a rank of a test. Raises ValueError for an unknown device."""
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device must be 'cuda' or 'cpu', got {device!r}")
    return {_DEVICE: device, _DIRECTORY: directory}


def _prepare() -> str:
    """Sets up the device of this process; returns why that failed, or ""."""
    try:
        if device == "cuda":
            cuda_device.use_cuda()
        else:
            accelerator.prepare()
    except LabUnavailable as reason:
        return str(reason)
    return ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    if _missing:
        pytest.skip(_missing)
    return (yield from _skip_if_cannot_tell())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    return (yield from _skip_if_cannot_tell())


def _skip_if_cannot_tell() -> Generator[None, None, None]:
    try:
        return (yield)
    except CannotTell as reason:
        pytest.skip(str(reason))


class _Reports:
    """Writes the reports of the test, all of them each time."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
        path = Path(_directory, f"{rank_variables.rank()}.reports")
        write_whole(path, pickle.dumps(self.reports))  # JSON has no tuples


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reports(config))


_missing = _prepare() if device else ""
