"""ZeRO-3 with an empty parameter: the reproduction shared by its patches. Importing this imports torch."""

from __future__ import annotations

import traceback

import torch
from torch import nn

from dsfix.lab.reference import largest_difference, train
from dsfix.lab.session import Lab
from dsfix.patch import BugPresent

_WIDTH = 8
_LEARNING_RATE = 0.01
_STEPS = 3


class _Model(nn.Module):  # type: ignore[misc,unused-ignore]
    """Linear, Linear with no outputs, Linear: float [n, width] -> the sum of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        for layer in (self.first, self.last):
            nn.init.eye_(layer.weight)
            nn.init.ones_(layer.bias)
        self.empty = nn.Linear(_WIDTH, 0, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        result: torch.Tensor = self.last(torch.cat([x, self.empty(x)], dim=1)).square().sum()
        return result


def reproduce(lab: Lab) -> str:
    """Compares the parameters with those of plain PyTorch. Raises BugPresent if the empty parameter is not gathered."""
    batches = [torch.arange(float(_WIDTH)).view(1, _WIDTH) / _WIDTH * (step + 1) for step in range(_STEPS)]
    model = _Model()
    expected = train(model, [[(each,)] for each in batches], model, "SGD", lr=_LEARNING_RATE)
    model = _Model()
    config = {
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for each in batches:
        try:
            loss = engine(each.to(lab.device))
        except AssertionError as error:
            place = traceback.extract_tb(error.__traceback__)[-1].name
            summary = error.args[0] if error.args else None
            if isinstance(summary, dict) and (summary["status"], summary["ds_numel"]) == ("NOT_AVAILABLE", 0):
                shape = tuple(summary["ds_shape"])
                raise BugPresent(f"in {place}: a parameter of shape {shape} is NOT_AVAILABLE in forward") from error
            raise
        engine.backward(loss)
        engine.step()
    difference = largest_difference(lab.parameters(engine), expected.parameters)
    assert difference.relative < 1e-4, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters match plain PyTorch within {difference.relative:.1e}"
