"""A ZeRO-3 job, and how many of its parameters are gathered at the end of each backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEPS = 3


def train(lab: Lab, evaluating: bool = False, checkpointing: bool = False) -> str:
    """Train with and without one of these two; gathered and trained parameters must be the same.

    evaluating: the model between the forward pass and the backward pass, under torch.no_grad(), as preference
    optimization with LoRA does. checkpointing: the model's activations.

    Raises:
        BugPresent: the parameters were still gathered at the end of the backward pass.
    """
    what = "a forward pass in between" if evaluating else "checkpointing"
    right, parameters = _train(lab, evaluating=False, checkpointing=False)
    assert right == [0] * _STEPS, f"without {what} {right} parameters are gathered"
    gathered, trained = _train(lab, evaluating, checkpointing)
    difference = lab.reference.largest_difference(trained, parameters)
    assert difference.absolute == 0.0, f"after {_STEPS} steps {difference}"
    seen = f"after the backward passes of {_STEPS} steps {gathered} of {len(parameters)} parameters are gathered"
    if gathered == [len(parameters)] * _STEPS:
        raise BugPresent(f"{seen}, none without {what}")
    assert gathered == [0] * _STEPS, seen
    return f"{seen}, as without {what}"


def _train(lab: Lab, evaluating: bool, checkpointing: bool) -> tuple[list[int], dict[str, Any]]:
    """Parameters that are gathered when the input has its gradient, and the parameters after the last step."""
    torch = lab.torch
    from torch.utils.checkpoint import checkpoint

    class CheckpointedModel(lab.models.MLP):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            forward = super().forward
            return checkpoint(forward, x, use_reentrant=False) if checkpointing else forward(x)

    model = CheckpointedModel()
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
        if evaluating:
            with torch.no_grad():
                engine(inputs.detach())
        engine.backward(loss)
        engine.step()
    return gathered, lab.parameters(engine)
