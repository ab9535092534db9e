"""Muon's update of a matrix, for the plain optimizer of scenarios. Imports torch.

Source: https://kellerjordan.github.io/posts/muon/.
"""

from __future__ import annotations

import math

import torch

_A, _B, _C, _STEPS = 3.4445, -4.7750, 2.0315, 5


def orthogonalized(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Newton-Schulz in `dtype`, scaled by the aspect ratio, returned in float64: float [rows, columns] -> the same."""
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.mT if tall else matrix
    x = (x / (x.norm() + 1e-7)).to(dtype)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    result: torch.Tensor = (x.mT if tall else x).double()
    return result * math.sqrt(max(1.0, matrix.size(0) / matrix.size(1)))
