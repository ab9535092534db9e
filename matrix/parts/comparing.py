"""Compares what a part of DeepSpeed gives with what its reference gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

_RELATIVE = {torch.float32: 2e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 3e-3}
_LEAST = {torch.bfloat16: 1e-2, torch.float16: 1e-3}  # where summands cancel each other


def same(got: Any, wanted: Any, what: str, within: float = 0.0) -> None:
    """Raises AssertionError unless they are equal, floating-point numbers up to rounding, or `within` relatively."""
    if isinstance(wanted, torch.Tensor):
        _tensors(got, wanted, what, within)
    elif isinstance(wanted, Mapping):
        assert isinstance(got, Mapping), f"{what} is {type(got).__name__}, not a mapping"
        assert got.keys() == wanted.keys(), f"{what} has {_names(got)} instead of {_names(wanted)}"
        for name in wanted:
            same(got[name], wanted[name], f"{what}, {name}", within)
    elif isinstance(wanted, (list, tuple)):
        assert isinstance(got, (list, tuple)), f"{what} is {type(got).__name__} instead of {len(wanted)} values"
        assert len(got) == len(wanted), f"{what}: {len(got)} instead of {len(wanted)} values"
        for number, (one, other) in enumerate(zip(got, wanted)):
            same(one, other, f"{what} {number}", within)
    elif isinstance(wanted, float):
        close = math.isclose(float(got), wanted, rel_tol=within or 2e-5, abs_tol=1e-7)
        assert close or (math.isnan(got) and math.isnan(wanted)), f"{what}: {float(got):.6g} instead of {wanted:.6g}"
    else:
        assert got == wanted, f"{what}: {got!r} instead of {wanted!r}"


def _names(values: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def _tensors(got: Any, wanted: torch.Tensor, what: str, within: float) -> None:
    assert isinstance(got, torch.Tensor), f"{what} is {type(got).__name__}, not a tensor"
    assert got.shape == wanted.shape, f"{what} has shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    assert got.dtype == wanted.dtype, f"{what} is {got.dtype} instead of {wanted.dtype}"
    one, other = got.detach().cpu(), wanted.detach().cpu()
    if not wanted.dtype.is_floating_point:
        assert torch.equal(one, other), f"{what} differs"
        return
    one, other = one.double(), other.double()
    assert torch.equal(one.isnan(), other.isnan()), f"{what} has {int(one.isnan().sum())} nan"
    one, other = one.nan_to_num(), other.nan_to_num()
    off = float((one - other).abs().max()) if other.numel() else 0.0
    size = float(other.abs().max()) if other.numel() else 0.0
    limit = (within or _RELATIVE.get(wanted.dtype, 0.1)) * size + _LEAST.get(wanted.dtype, 2e-5)
    assert off <= limit, f"{what} is off by {off:.2g} of {size:.2g}"
