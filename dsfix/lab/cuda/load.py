"""Loads the emulated device into this process, before `import torch`, and sets the order of work on its streams."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from dsfix.lab.cuda.compiling import LIBRARY, library
from dsfix.lab.distributions import LabUnavailable, hide_triton, torch_build

SCHEDULE = "DSFIX_LAB_SCHEDULE"
NAMES = ("early", "late", "ahead", "random")
USAGE = "early, late, ahead or random:SEED"


@dataclass(frozen=True)
class Schedule:
    """name: one of NAMES; seed: of "random"."""

    name: str
    seed: int = 0


def parse(text: str) -> Schedule:
    """The schedule that a text names. Raises ValueError."""
    name, _, seed = text.partition(":")
    if name not in NAMES or (name == "random") != seed.isdecimal() or (seed == "") != (name != "random"):
        raise ValueError(f"expected {USAGE}, got {text!r}")
    return Schedule(name, int(seed or 0))


def of_environment(environment: Mapping[str, str] = os.environ) -> Schedule | None:
    """The schedule that the variable sets; None: every call is synchronous. Raises LabUnavailable."""
    text = environment.get(SCHEDULE, "")
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise LabUnavailable(f"{SCHEDULE}: {error}") from None


_loaded: list[ModuleType] = []
_followed: list[Schedule] = []


def loaded() -> bool:
    return bool(_loaded)


def follow(schedule: Schedule) -> None:
    """Follows the schedule from now on, unless the environment sets one, which applies from the start.

    To be called after `load` and before any tensor is on the device; a second call has no effect.
    """
    if not _followed:
        _followed.append(of_environment() or schedule)
        _loaded[0].set_schedule(_followed[0].name, _followed[0].seed)
        atexit.register(_loaded[0].finish_all)  # other ranks may need it


def load(devices: int = 8) -> None:
    """Gives this process `devices` emulated CUDA devices; imports torch. A second call loads nothing.

    Each follows the schedule that the environment sets at that time; a forked process may have its own. Raises
    LabUnavailable, naming what is missing.
    """
    requested = of_environment()
    if loaded():
        if requested is not None:
            follow(requested)
        return
    if "torch" in sys.modules:
        raise LabUnavailable("torch is already imported; the emulated CUDA device must be loaded before it")
    path = str(library())
    hide_triton()
    # torch looks up its CUDA hooks once, during its import, so they are registered first
    try:
        ctypes.CDLL(str(torch_build().directory / "lib" / "libtorch_python.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(path)
        import torch
    except (OSError, ImportError) as error:
        raise LabUnavailable(f"torch cannot be loaded with the emulated CUDA device: {error}") from None

    spec = importlib.util.spec_from_file_location(LIBRARY, path)
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    if not native.hooked():
        raise LabUnavailable("torch does not recognise the emulated CUDA device")
    if not 1 <= devices <= native.MAX_DEVICES:
        raise LabUnavailable(f"devices must be between 1 and {native.MAX_DEVICES}, got {devices}")
    native.set_device_count(devices)
    from dsfix.lab.cuda import device, selftest, statistics, streams

    for module in (device, statistics, streams):
        module.install(native)
    fault = selftest.fault()
    if fault:
        raise LabUnavailable(f"the emulated CUDA device does not work with torch {torch.__version__}: {fault}")
    _loaded.append(native)
    if requested is not None:
        follow(requested)
