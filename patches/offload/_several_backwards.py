"""Two backward passes before each step of ZeRO-2 with optimizer offload, of which only the last is used."""

from __future__ import annotations

import logging
from typing import Any

from dsfix.lab.session import Lab
from dsfix.patch import BugPresent

from .._messages import Messages

_RATE = 0.1
_STEPS = 2


def told(lab: Lab, patch: str, boundary: bool) -> str:
    """What a job that loses passes is told. boundary: it sets the boundary itself, at the last pass of a step.

    Raises BugPresent if passes are lost without a warning that names the patch.
    """
    functional = lab.torch.nn.functional
    steps = [[lab.models.regression_batch(rank=0, step=2 * step + i) for i in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_RATE * 2).parameters  # the sum, not the mean

    warnings = Messages(logging.WARNING)
    logging.getLogger("dsfix").addHandler(warnings)
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())

    def backward(inputs: Any, targets: Any) -> None:
        engine.backward(functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))

    if not boundary:
        for batch in steps[0]:
            backward(*batch)
            engine.zero_grad()
        assert not any(patch in each for each in warnings.lines), "a warning of a pass that was discarded"
    for step in steps:
        for last, batch in zip((False, True), step):
            if boundary:
                engine.set_gradient_accumulation_boundary(last)
            backward(*batch)
        engine.step()
    if lab.reference.largest_difference(lab.parameters(engine), right).relative < 1e-5:
        return "no backward pass is lost"
    if not any(patch in each for each in warnings.lines):
        raise BugPresent("the first of two backward passes before a step is lost, without a warning")
    return "a step that loses a backward pass says so"
