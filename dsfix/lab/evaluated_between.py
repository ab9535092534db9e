"""A ZeRO-3 job that evaluates its model between a forward pass and its backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..patch import BugPresent

if TYPE_CHECKING:
    from . import Lab

_STEPS = 3


def train(lab: Lab) -> str:
    """Train with and without a forward pass in between under torch.no_grad(), as preference optimization with LoRA has.

    Raises:
        BugPresent: the parameters were still gathered at the end of the backward pass.
    """
    right, parameters = _train(lab, between=False)
    assert right == [0] * _STEPS, f"without a forward pass in between {right} parameters are gathered"
    gathered, evaluated = _train(lab, between=True)
    difference = lab.reference.largest_difference(evaluated, parameters)
    assert difference.absolute == 0.0, f"after {_STEPS} steps {difference}"
    seen = f"after the backward passes of {_STEPS} steps {gathered} of {len(parameters)} parameters are gathered"
    if gathered == [len(parameters)] * _STEPS:
        raise BugPresent(f"{seen}, none without the forward pass in between")
    assert gathered == [0] * _STEPS, seen
    return f"{seen}, as without the forward pass in between"


def _train(lab: Lab, between: bool) -> tuple[list[int], dict[str, Any]]:
    """Parameters that are gathered when the input has its gradient, and the parameters after the last step."""
    torch = lab.torch
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    gathered = []

    def count(_: Any) -> None:
        gathered.append(sum(parameter.ds_status.name == "AVAILABLE" for parameter in model.parameters()))

    for step in range(_STEPS):
        inputs, targets = (tensor.to(lab.device) for tensor in lab.models.regression_batch(rank=0, step=step))
        # on no release does a module whose input needs no gradient see the end of its backward pass
        inputs.requires_grad_().register_hook(count)
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        if between:
            with torch.no_grad():
                engine(inputs.detach())
        engine.backward(loss)
        engine.step()
    return gathered, lab.parameters(engine)
