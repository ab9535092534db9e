"""Whether an engine's optimizer makes an extra step before the first: a comparison with AdamW in plain PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from dsfix.lab.models import MLP, regression_batch
from dsfix.lab.reference import LargestDifference, largest_difference
from dsfix.lab.session import Lab
from dsfix.patch import BugPresent

from . import _half as half

_STEPS = 2
# large enough for an extra step, and an extra step in the bias correction, to exceed the rounding of bf16
_OPTIONS = {"lr": 0.05, "betas": (0.9, 0.95), "weight_decay": 1.0}
_TOLERANCE = 0.01


def compare(
    lab: Lab, dtype: torch.dtype, config: Mapping[str, Any], fused: bool = False
) -> tuple[bool, LargestDifference]:
    """Whether the weights are those with an extra first step without gradients; their difference from those without."""
    steps = [[regression_batch(rank=0, step=step)] for step in range(_STEPS)]
    right, ahead = (
        half.train(MLP(), dtype, steps, functools.partial(torch.optim.AdamW, **_OPTIONS), first)  # type: ignore[arg-type]
        for first in (False, True)
    )
    model = MLP()
    params = {**_OPTIONS, "torch_adam": not fused}
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "AdamW", "params": params},
        **config,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()
    parameters = lab.parameters(engine)
    difference = largest_difference(parameters, right)
    return largest_difference(parameters, ahead).relative < _TOLERANCE < difference.relative, difference


def report(cases: Mapping[str, tuple[bool, LargestDifference]]) -> str:
    """The result of a reproduction with these cases. Raises BugPresent if a case has the extra step."""
    ahead = [name for name, (extra, _) in cases.items() if extra]
    wrong = {
        name: str(difference)
        for name, (extra, difference) in cases.items()
        if not extra and difference.relative >= _TOLERANCE
    }
    assert not wrong, f"after {_STEPS} steps {wrong}"
    if ahead:
        largest = max((cases[name][1] for name in ahead), key=lambda difference: difference.relative)
        raise BugPresent(f"an extra step of AdamW without gradients ({', '.join(ahead)}): {largest}")
    largest = max((difference for _, difference in cases.values()), key=lambda difference: difference.relative)
    return f"after {_STEPS} steps the weights match plain AdamW within {largest.relative:.1e} ({', '.join(cases)})"
