"""The norms of parameter groups, where -1, from 0.13 to 0.16.5 mostly nan, stands for one that is not finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def infinite(norms: Iterable[Any]) -> list[Any]:
    """Infinite instead of -1 and nan; one of integers crashes in torch: zero12_offload_nonfinite_norm_long."""
    import torch

    found: list[Any] = []
    for norm in norms:
        if torch.is_tensor(norm):
            found.append(norm.masked_fill(~(norm >= 0), float("inf")) if norm.is_floating_point() else norm)
        else:
            found.append(float("inf") if norm < 0 else norm)
    return found
