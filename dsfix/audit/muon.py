"""Muon: what DeepSpeed gives its inner optimizer in place of the gradients of matrices. Imports torch.

Source: https://kellerjordan.github.io/posts/muon/. With ZeRO the gradient norm, and with it clipping, is of what the
optimizer is given: https://github.com/deepspeedai/DeepSpeed/pull/7509.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dsfix.audit import bounds

if TYPE_CHECKING:
    from dsfix.audit.reference import Gradients

_A, _B, _C, _STEPS = 3.4445, -4.7750, 2.0315, 5
_RESTART = 2
Tensors = Mapping[str, torch.Tensor]


def is_matrix(name: str, shape: torch.Size) -> bool:
    """Whether Muon updates a parameter: hidden weights; Adam has all else."""
    return len(shape) >= 2 and not any(word in name for word in ("embed", "lm_head"))


def orthogonalized(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Newton-Schulz in `dtype`, scaled by the aspect ratio, in float64: float [rows, columns] -> the same.

    In fp16 by Gram matrices, as DeepSpeed does it there, which is the same but for its rounding.
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
    """So many steps without touching `x` before the last: https://tridao.me/blog/2026/gram-newton-schulz/."""
    gram, product = x @ x.mT, torch.eye(x.size(0), dtype=x.dtype)
    for _ in range(steps):
        factor = _polynomial(gram)
        product = _A * product + factor @ product
        half = _A * gram + factor @ gram
        gram = _A * half + factor @ half
    return product @ x


def given(
    truth: Gradients,
    limits: Mapping[str, float],
    momentum: Tensors,
    beta: Mapping[str, float],
    clip: float,
    dtype: torch.dtype,
) -> tuple[Gradients, dict[str, float], dict[str, torch.Tensor]]:
    """`truth` and `limits` (of gradients that are not clipped) with updates for the matrices; and the new momentum.

    momentum: before the step. beta: of each matrix, whose name is a key. dtype: that DeepSpeed iterates in, whose
    rounding is measured, and so is what the limit of a gradient becomes.
    """
    total = {name: tensor / truth.factor for name, tensor in truth.clipped.items()}
    found, moved = dict(limits), {}
    generator = torch.Generator().manual_seed(0)
    for name, b in beta.items():
        gradient = total[name]
        moved[name] = momentum[name].lerp(gradient, 1 - b) if name in momentum else gradient * (1 - b)
        blend = gradient.lerp(moved[name], b)
        noise = torch.randn(blend.shape, generator=generator, dtype=blend.dtype)
        other = blend + noise * (limits[name] / noise.norm())
        total[name] = orthogonalized(blend, torch.float64)
        found[name] = bounds.KERNELS * float((orthogonalized(other, dtype) - total[name]).norm())
    norm = float(torch.stack([tensor.norm() for tensor in total.values()]).norm())
    factor = min(1.0, clip / (norm + 1e-6)) if clip > 0.0 else 1.0
    clipped = {name: tensor * factor for name, tensor in total.items()}
    return replace(truth, norm=norm, factor=factor, clipped=clipped), found, moved
