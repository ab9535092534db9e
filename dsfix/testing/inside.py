"""pytest in a process that `dsfix.testing.apart` has started: the device is there before anything imports torch."""

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

_DEVICE, _DIRECTORY = "DSFIX_TESTING_DEVICE", "DSFIX_TESTING_DIRECTORY"

# taken out: a process that the test starts is no rank of it
device, _directory = os.environ.pop(_DEVICE, ""), os.environ.pop(_DIRECTORY, "")
"""This rank's device, "" in a process that is no rank of a test."""


def variables(device: str, directory: str) -> dict[str, str]:
    """What tells a process that it is a rank of one test. Raises ValueError for an unknown device."""
    if device not in ("cuda", "cpu"):
        raise ValueError(f"a test's device is 'cuda' or 'cpu', not {device!r}")
    return {_DEVICE: device, _DIRECTORY: directory}


def _prepare() -> str:
    """Gives this process its device; returns why there is none, or ""."""
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
    return (yield from _what_cannot_be_told_is_skipped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    return (yield from _what_cannot_be_told_is_skipped())


def _what_cannot_be_told_is_skipped() -> Generator[None, None, None]:
    try:
        return (yield)
    except CannotTell as reason:
        pytest.skip(str(reason))


class _Reports:
    """Writes what is reported of the test, whole each time."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.told: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.told.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
        path = Path(_directory, f"{rank_variables.rank()}.reports")
        partial = path.with_suffix(".partial")
        partial.write_bytes(pickle.dumps(self.told))  # JSON has no tuples
        os.replace(partial, path)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reports(config))


_missing = _prepare() if device else ""
