"""A ZeRO-2 job in fp16, reduced in fp32, whose bucket is too small for its parameters. Importing this imports torch."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch
from torch import nn

from dsfix.lab.reference import compare
from dsfix.lab.reference import train as train_plainly
from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

WIDTH = 8  # of the weight; the bias is one more number
_STEPS, _RATE = 2, 0.5


def train(lab: Lab, size: int, is_bug: Callable[[Exception, Collection[str]], bool]) -> str:
    """Train with a bucket of so many numbers, and compare with plain PyTorch.

    is_bug: whether an error of the backward pass, which passed functions of these names, is that of the bug.

    Raises:
        BugPresent: it is.
    """
    # the loss is linear in the parameters, and all numbers are exact in fp16
    inputs = [torch.arange(float(WIDTH)).view(1, WIDTH) / 4 * (step + 1) for step in range(_STEPS)]
    model = _ones()
    expected = train_plainly(model, [[(each,)] for each in inputs], lambda x: model(x).sum(), "SGD", lr=_RATE)

    model = _ones()
    config = {
        "fp16": {"enabled": True, "loss_scale": 1},
        "communication_data_type": "fp32",
        "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": size},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for each in inputs:
        loss = engine(each.to(lab.device, torch.float16)).float().sum()
        try:
            engine.backward(loss)
        except Exception as error:
            passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            if is_bug(error, passed):
                raise BugPresent(f"in {passed[-1]}: {type(error).__name__} {str(error).splitlines()[0]}") from error
            raise
        engine.step()
    return compare(lab.parameters(engine), expected.parameters, after=f"after {_STEPS} steps")


def _ones() -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    return model
