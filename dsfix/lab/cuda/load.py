"""Load the emulated device into this process: has to come before `import torch`."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from types import ModuleType

from dsfix.lab.cuda.compiling import LIBRARY, library
from dsfix.lab.distributions import torch_build
from dsfix.lab.errors import LabUnavailable

_loaded: list[ModuleType] = []


def loaded() -> bool:
    """Whether this process has the emulated device."""
    return bool(_loaded)


def load(devices: int = 8) -> None:
    """Give this process `devices` emulated CUDA devices; imports torch. A second call changes nothing.

    Raises LabUnavailable, naming what is missing, where that is not possible.
    """
    if loaded():
        return
    if "torch" in sys.modules:
        raise LabUnavailable("torch is imported already, and the emulated CUDA device has to be loaded before it")
    path = str(library())
    # torch asks for its CUDA hooks once, while it is imported, so they are registered before that
    ctypes.CDLL(str(torch_build().directory / "lib" / "libtorch_python.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(path)
    import torch  # noqa: F401

    spec = importlib.util.spec_from_file_location(LIBRARY, path)
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    if not native.hooked():
        raise LabUnavailable("torch does not see the emulated CUDA device")
    if not 1 <= devices <= native.MAX_DEVICES:
        raise LabUnavailable(f"there can be 1 to {native.MAX_DEVICES} emulated devices, not {devices}")
    native.set_device_count(devices)
    from dsfix.lab.cuda import device, legacy_tensors, statistics, streams

    for module in (device, statistics, streams, legacy_tensors):
        module.install(native)
    _loaded.append(native)
