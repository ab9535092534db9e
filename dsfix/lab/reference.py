"""The reference: training in plain PyTorch in one process, and comparing results with it. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dsfix.patch import BugPresent

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
}

_NOTHING: Mapping[str, Mapping[str, torch.Tensor]] = {}


@dataclass
class Training:
    """losses and gradient_norms (before clipping) step by step, and the parameters at the end, by name."""

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)


def train(
    model: nn.Module,
    steps: Iterable[Sequence[Any]],
    loss: Callable[..., torch.Tensor],
    optimizer: str = "AdamW",
    clip: float = 0.0,
    rates: Sequence[float] = (),
    **options: Any,
) -> Training:
    """Trains `model` in place.

    steps: for each step the micro-batches of all ranks and accumulations, whose mean loss is used.
    loss: called as ``loss(*micro_batch)``.
    optimizer: "Adam", "AdamW" or "SGD" with `options`; DeepSpeed's "Adam" is AdamW unless its adam_w_mode is off.
    clip: the maximum gradient norm, 0 for no clipping. rates: the learning rate of each step, where it changes.
    """
    if optimizer not in _OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(_OPTIMIZERS)}, got {optimizer!r}")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    stepper = _OPTIMIZERS[optimizer](list(trained.values()), **options)
    result = Training()
    for number, micro_batches in enumerate(steps):
        if rates:
            stepper.param_groups[0]["lr"] = rates[number]
        stepper.zero_grad()
        mean: Any = torch.stack([loss(*batch) for batch in micro_batches]).mean()
        mean.backward()
        gradients = [p.grad for p in trained.values() if p.grad is not None]
        result.losses.append(mean.item())
        result.gradient_norms.append(torch.stack([g.norm() for g in gradients]).norm().item())
        if clip > 0.0:
            nn.utils.clip_grad_norm_(list(trained.values()), clip)
        stepper.step()
    result.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return result


@dataclass(frozen=True)
class LargestDifference:
    """The tensor with the largest difference: absolute is max |a - b|, relative is that divided by max |b|."""

    name: str
    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.name} differs by {self.absolute:.3g} (relative {self.relative:.3g})"


def largest_difference(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> LargestDifference:
    """The largest relative difference of tensors with the same name; infinite if a value is not finite.

    Raises ValueError if names or shapes differ, or if there are no tensors.
    """
    if tensors.keys() != expected.keys() or not tensors:
        raise ValueError(f"names differ: {sorted(tensors.keys() ^ expected.keys()) or 'there are none'}")
    return max((_difference(name, tensors[name], expected[name]) for name in expected), key=lambda d: d.relative)


def compare(
    seen: Mapping[str, torch.Tensor],
    right: Mapping[str, torch.Tensor],
    wrong: Mapping[str, Mapping[str, torch.Tensor]] = _NOTHING,
    *,
    within: float = 1e-4,
    after: str = "",
    what: str = "the parameters",
) -> str:
    """That `seen` equals `right` up to the relative difference `within`, in a sentence.

    seen, right: tensors by name. wrong: what the bug would have produced, by a phrase that completes "the parameters
    are ...". after: "after 3 steps". Raises BugPresent: `seen` is one of `wrong`, and not `right`. Raises
    AssertionError: it is neither.
    """
    difference = largest_difference(seen, right)
    if difference.relative < within:
        return f"{after} {what} match plain PyTorch within {difference.relative:.1e}".lstrip()
    for name, tensors in wrong.items():
        if largest_difference(seen, tensors).relative < within:
            raise BugPresent(f"{after} {what} are {name}: {difference}".lstrip())
    raise AssertionError(f"{after} {difference}".lstrip())


def _difference(name: str, tensor: torch.Tensor, expected: torch.Tensor) -> LargestDifference:
    if tensor.shape != expected.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}")
    left, right = (t.detach().to("cpu", torch.float64) for t in (tensor, expected))
    absolute = (left - right).abs().max().item() if left.numel() else 0.0
    scale = right.abs().max().item() if right.numel() else 0.0
    if absolute != absolute or absolute == float("inf"):
        return LargestDifference(name, float("inf"), float("inf"))
    return LargestDifference(name, absolute, absolute / scale if scale else absolute and float("inf"))
