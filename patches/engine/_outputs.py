"""Models whose output is their loss, or contains it. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn
from torch.nn import functional

from dsfix.lab import reference
from dsfix.lab.models import MLP, regression_batch

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEPS, _MICRO_BATCHES, _RATE = 2, 4, 0.1


class LossAndOutput(nn.Module):  # type: ignore[misc,unused-ignore]
    """`model` with a Hugging Face output: (inputs, targets) -> {"loss": mean squared error, "logits": model output}."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(inputs)
        return {"loss": functional.mse_loss(logits, targets), "logits": logits}

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Only the loss."""
        result: torch.Tensor = self(inputs, targets)["loss"]
        return result


class Loss(nn.Module):  # type: ignore[misc,unused-ignore]
    """`model` with its loss: (inputs, targets) -> mean squared error."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.model(inputs), targets)


def accumulate(lab: Lab, backward: Callable[[Any, torch.Tensor], Any]) -> str:
    """Train a model that returns its loss in a dictionary, under ZeRO-1 with several micro-batches in a step.

    backward: of the engine and the loss.

    Raises:
        BugPresent: the gradients were divided by the number of micro-batches twice.
    """
    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = LossAndOutput(MLP())
    expected = reference.train(model, steps, model.loss, "SGD", lr=_RATE)
    model = LossAndOutput(MLP())
    twice = reference.train(model, steps, model.loss, "SGD", lr=_RATE / _MICRO_BATCHES)

    model = LossAndOutput(MLP())
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        backward(engine, engine(inputs.to(lab.device), targets.to(lab.device))["loss"])
        engine.step()
    return reference.compare(
        lab.parameters(engine),
        expected.parameters,
        {f"those of gradients divided by {_MICRO_BATCHES**2}": twice.parameters},
        after=f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches",
    )
