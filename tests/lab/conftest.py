"""Everything that imports torch runs in separate processes, because the emulated device must be loaded first."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python source in a fresh process that can import dsfix."""

    def run(source: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", source, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def answer(python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """Runs Python source in a fresh process and parses the JSON in its last line."""
    # while Python is finalized, a backward thread of torch that wants the GIL aborts the process, once in some hundreds
    end = "\nimport atexit, os, sys\natexit._run_exitfuncs()\nsys.stdout.flush()\nos._exit(0)\n"

    def run(source: str, *arguments: str, **variables: str) -> Any:
        done = python(source + end, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def emulated() -> None:
    """Builds the emulated device; skips if that is not possible."""
    from dsfix.lab.cuda.compiling import library
    from dsfix.lab.errors import LabUnavailable

    try:
        library()
    except LabUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def has_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.fixture(scope="session")
def has_deepspeed(has_torch: None) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
