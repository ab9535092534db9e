"""Memory statistics of the emulated device, and storage functions that torch without CUDA lacks."""

from __future__ import annotations

import types
from typing import Any

import torch

from dsfix.lab.cuda.device import TOTAL_MEMORY, Device, index_of, rebind


def install(native: types.ModuleType) -> None:
    """Replaces torch.cuda's memory functions and completes torch.UntypedStorage."""
    _install_statistics(native)
    _install_storage(native)


def _install_statistics(native: types.ModuleType) -> None:
    def current(device: Device = None) -> int:
        return int(native.bytes(index_of(native, device)))

    def peak(device: Device = None) -> int:
        return int(native.peak_bytes(index_of(native, device)))

    def reset(device: Device = None) -> None:
        native.reset_peak(index_of(native, device))

    def statistics(device: Device = None) -> dict[str, int]:
        values = {"num_alloc_retries": 0, "num_ooms": 0}
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes"):
            values[f"{kind}.all.current"] = current(device)
            values[f"{kind}.all.peak"] = peak(device)
        return values

    functions: dict[str, Any] = {
        # one function object per name: torch._dynamo rejects an object with two names
        "memory_allocated": lambda device=None: current(device),
        "memory_reserved": lambda device=None: current(device),
        "memory_cached": lambda device=None: current(device),
        "max_memory_allocated": lambda device=None: peak(device),
        "max_memory_reserved": lambda device=None: peak(device),
        "max_memory_cached": lambda device=None: peak(device),
        "reset_peak_memory_stats": lambda device=None: reset(device),
        "reset_max_memory_allocated": lambda device=None: reset(device),
        "reset_max_memory_cached": lambda device=None: reset(device),
        "reset_accumulated_memory_stats": lambda device=None: None,
        "memory_stats": statistics,
        "mem_get_info": lambda device=None: (TOTAL_MEMORY - current(device), TOTAL_MEMORY),
        "empty_cache": lambda: None,
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
    rebind(torch.cuda.memory, functions)


def _install_storage(native: types.ModuleType) -> None:
    storage: Any = torch.UntypedStorage
    resize = storage.resize_
    to: Any = getattr(storage, "to", None)  # torch 2.3 has none

    def bytes_over(of: Any) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=of.device).set_(of)

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        native.resize_storage(bytes_over(self), size)
        return self

    def cuda(self: Any, device: Device = None, non_blocking: bool = False) -> Any:
        place = torch.device("cuda", index_of(native, device))
        if self.device == place:
            return self
        target = torch.empty(self.nbytes(), dtype=torch.uint8, device=place)
        return target.copy_(bytes_over(self)).untyped_storage()

    def move(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if torch.device(device).type == "cuda":
            return cuda(self, device)
        return to(self, device=device, non_blocking=non_blocking)

    storage.resize_, storage.cuda = resize_, cuda
    if to is not None:
        storage.to = move
