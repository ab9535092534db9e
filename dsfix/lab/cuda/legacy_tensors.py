"""The legacy tensor types torch.cuda.FloatTensor etc."""

from __future__ import annotations

import types
from typing import Any

import torch

from dsfix.lab.cuda.device import Device, index_of

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


def install(native: types.ModuleType) -> None:

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
