"""Gradients of all parameters are doubled under ZeRO-3, one of a single element. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dsfix.lab.models import MLP, regression_batch
from dsfix.lab.reference import compare
from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab.session import Lab

_STEPS, _RATE = 2, 0.1


def doubled(lab: Lab, double: Callable[[list[Any]], None]) -> str:
    """Train with `double(parameters)` between backward and step; compare with plain PyTorch.

    BugPresent: a rank cannot cut its part out of the gradient.
    """
    return "; ".join(_train(lab, double, offload) for offload in ("none", "cpu"))


def _train(lab: Lab, double: Callable[[list[Any]], None], offload: str) -> str:
    batches = [[regression_batch(rank, step) for rank in (0, 1)] for step in range(_STEPS)]
    model = MLP()
    right = lab.reference.train(model, batches, model.loss, "SGD", lr=2 * _RATE).parameters

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": offload}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for batch in batches:
        inputs, targets = (each.to(lab.device) for each in batch[lab.rank])
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        try:
            double(list(engine.module.parameters()))
        except RuntimeError as error:
            if "exceeds dimension size" not in str(error):
                raise
            raise BugPresent(f"on rank {lab.rank}: RuntimeError, {error}") from error
        engine.step()
    return compare(lab.parameters(engine), right, after=f"with offload to {offload}, after {_STEPS} steps")
