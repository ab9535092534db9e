"""A module attached to a ZeRO-3 model after `deepspeed.initialize`: the forward pass, compared with plain PyTorch."""

from __future__ import annotations

from typing import Any

from dsfix.lab.session import Lab
from dsfix.patch import BugPresent

_PASSES = 2
_MESSAGE = "has no attribute '_in_forward'"


def forward_with_late_module(lab: Lab) -> str:
    """Raises BugPresent if the engine cannot mark the late module. Makes no step: ZeRO-3 cannot partition it."""
    torch, models = lab.torch, lab.models

    def attach(model: Any, device: Any) -> None:
        late = models.MLP(depth=1, seed=1).to(device)
        model.add_module("late", late.requires_grad_(False))
        model.head.register_forward_hook(lambda head, inputs, output: output + late(inputs[0]))

    inputs = {str(step): models.regression_batch(rank=0, step=step)[0] for step in range(_PASSES)}
    model = models.MLP()
    attach(model, "cpu")
    with torch.no_grad():
        expected = {step: model(x) for step, x in inputs.items()}

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(inputs["0"]),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    attach(model, lab.device)
    outputs = {}
    for step, x in inputs.items():
        try:
            with torch.no_grad():
                outputs[step] = engine(x.to(lab.device))
        except AttributeError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"in forward pass {step}: {error}") from error
            raise
    difference = lab.reference.largest_difference(outputs, expected)
    assert difference.relative < 1e-4, f"the outputs of pass {difference}"
    return f"the outputs of {_PASSES} forward passes match plain PyTorch within {difference.relative:.1e}"
