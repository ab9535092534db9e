"""Muon: the updates that DeepSpeed passes to its inner optimizer in place of the matrices' gradients. Imports torch.

Source: https://kellerjordan.github.io/posts/muon/. With ZeRO the gradient norm and clipping apply to these updates:
https://github.com/deepspeedai/DeepSpeed/pull/7509.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from dsfix.audit import bounds

_A, _B, _C, _STEPS = 3.4445, -4.7750, 2.0315, 5
_RESTART = 2
Tensors = Mapping[str, torch.Tensor]


def orthogonalized(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Newton-Schulz in `dtype`, scaled by the aspect ratio, returned in float64: float [rows, columns] -> the same.

    In fp16 by Gram matrices, as DeepSpeed does, which is the same except for rounding.
    """
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.mT if tall else matrix
    x = (x / (x.norm() + 1e-7)).to(dtype)
    if dtype == torch.float16 and x.size(0) < x.size(1):
        x = _powers(_powers(x, _RESTART), _STEPS - _RESTART)
    else:
        for _ in range(_STEPS):
            x = _A * x + _polynomial(x @ x.mT) @ x
    result: torch.Tensor = (x.mT if tall else x).double()
    return result * math.sqrt(max(1.0, matrix.size(0) / matrix.size(1)))


def _polynomial(gram: torch.Tensor) -> torch.Tensor:
    return _B * gram + _C * gram @ gram


def _powers(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Iterates on the Gram matrix only, and applies it once: https://tridao.me/blog/2026/gram-newton-schulz/."""
    gram, product = x @ x.mT, torch.eye(x.size(0), dtype=x.dtype)
    for _ in range(steps):
        factor = _polynomial(gram)
        product = _A * product + factor @ product
        half = _A * gram + factor @ gram
        gram = _A * half + factor @ half
    return product @ x


def given(
    gradients: Tensors, limits: Mapping[str, float], momentum: Tensors, beta: Mapping[str, float], dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, float], dict[str, torch.Tensor]]:
    """Returns gradients and limits with updates in place of those of the matrices, and the new momentum.

    gradients, limits: before clipping. momentum: before the step. beta: by name of the matrices. dtype: the one that
    DeepSpeed iterates in: the limits include its measured rounding.
    """
    total, found, moved = dict(gradients), dict(limits), {}
    generator = torch.Generator().manual_seed(0)
    for name, b in beta.items():
        gradient = total[name]
        moved[name] = momentum[name].lerp(gradient, 1 - b) if name in momentum else gradient * (1 - b)
        blend = gradient.lerp(moved[name], b)
        noise = torch.randn(blend.shape, generator=generator, dtype=blend.dtype)
        other = blend + noise * (limits[name] / noise.norm())
        total[name] = orthogonalized(blend, torch.float64)
        found[name] = bounds.KERNELS * float((orthogonalized(other, dtype) - total[name]).norm())
    return total, found, moved
