"""torch.cuda's functions about devices, for the emulated devices."""

from __future__ import annotations

import types
from typing import Any, Union

import torch

NAME = "emulated CUDA device"
TOTAL_MEMORY = 80 << 30
_CAPABILITY = (8, 0)

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}

Device = Union[None, int, str, torch.device]


def index_of(native: types.ModuleType, device: Device) -> int:
    """The index of a device as accepted by torch.cuda's functions; None is the current device."""
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    return int(native.current_device()) if index is None else index


def install(native: types.ModuleType) -> None:
    """Replaces the functions of torch.cuda that call the CUDA runtime."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def lazy_call(function: Any, **_: Any) -> None:
        function()

    def set_device(device: Device) -> None:
        native.set_device(index_of(native, device))

    def exchange_device(index: int) -> int:
        previous: int = native.current_device()
        native.set_device(index)
        return previous

    def maybe_exchange_device(index: int) -> int:  # torch.compile requires a separate function per name
        return exchange_device(index)

    def properties(device: Device = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            name=NAME,
            major=_CAPABILITY[0],
            minor=_CAPABILITY[1],
            total_memory=TOTAL_MEMORY,
            multi_processor_count=108,
            warp_size=32,
            gcnArchName="",
            uuid=f"emulated-{index_of(native, device)}",
        )

    def can_access_peer(device: Device, peer: Device) -> bool:
        return index_of(native, device) != index_of(native, peer)

    cuda = torch.cuda
    # the mathematical attention is left, which needs no kernel of its own
    for name in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, name, nothing)(False)
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": nothing,
        "_lazy_call": lazy_call,
        "init": nothing,
        "ipc_collect": nothing,
        "device_count": lambda: int(native.device_count()),
        "current_device": lambda: int(native.current_device()),
        "set_device": set_device,
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": maybe_exchange_device,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: _CAPABILITY,
        "get_arch_list": lambda: ["sm_80"],
        "can_device_access_peer": can_access_peer,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "default_generators": (torch.default_generator,) * native.device_count(),
    }
    for name, function in functions.items():
        setattr(cuda, name, function)
    # modules that imported the names with `from torch.cuda import ...`
    rebind(cuda.random, functions)
    rebind(cuda.memory, functions)
    rebind(cuda.streams, functions)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _named(name))
    _install_legacy_tensors(native)


def _install_legacy_tensors(native: types.ModuleType) -> None:
    """torch.cuda.FloatTensor etc."""

    class TensorType(type):
        dtype: torch.dtype

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

        def __call__(cls, *args: Any, device: Device = None) -> torch.Tensor:
            where = torch.device("cuda", index_of(native, device))
            if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
                return torch.tensor(args[0], dtype=cls.dtype, device=where)
            return torch.empty(*(args or (0,)), dtype=cls.dtype, device=where)

    for name, dtype in _DTYPES.items():
        name += "Tensor"
        setattr(torch.cuda, name, TensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda"}))


def rebind(module: types.ModuleType, replacements: dict[str, Any]) -> None:
    for name, replacement in replacements.items():
        if hasattr(module, name):
            setattr(module, name, replacement)


def _named(name: str) -> Any:
    # one function object per name: torch._dynamo rejects an object with two names
    def marker(*_: Any, **__: Any) -> int | None:
        return None

    marker.__name__ = name
    return marker
