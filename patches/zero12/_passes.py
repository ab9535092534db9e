"""Several backward passes before a step of ZeRO-1 or ZeRO-2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsfix.lab import Lab

RATE, _PASSES = 0.1, 3
_STEPS = 2  # the second shows that nothing remains of the first

#: At the accumulation boundary.
FILL = """
self.averaged_gradients[i] = self.get_flat_partition(
    self.params_in_partition[i],
    self.first_offset[i],
    self.partition_size[i],
    dtype=self.gradient_accumulation_dtype,
    device=get_accelerator().current_device_name(),
    param_group_idx=i,
    return_tensor_list=True,
)
"""


def is_own(optimizer: Any) -> bool:
    """Whether the engine's own `backward` runs: since 0.18.3 another engine's, or the loss's, ends a pass, too."""
    engines = (getattr(hook, "__self__", None) for hook in getattr(optimizer, "_grad_acc_post_hooks", ()))
    return all(getattr(each, "_running_engine_backward", True) for each in engines)


def steps_of(lab: Lab) -> list[list[Any]]:
    """For each step the batches of its passes."""
    batch = lab.models.regression_batch
    return [[batch(rank=0, step=step * _PASSES + i) for i in range(_PASSES)] for step in range(_STEPS)]


def described(stage: int, forwards: int) -> str:
    return f"ZeRO-{stage}, {_STEPS} steps of {forwards} forward and {_PASSES} backward passes"


def train(lab: Lab, steps: list[list[Any]], stage: int, forwards: int) -> dict[str, Any]:
    """The parameters after these steps, with one forward pass for each step or one for each of its passes."""
    torch = lab.torch
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for batches in steps:
        outputs: list[Any] = []
        if forwards == 1:
            outputs = engine(torch.cat([inputs for inputs, _ in batches]).to(lab.device)).chunk(len(batches))
        for i, (inputs, targets) in enumerate(batches):
            output = outputs[i] if outputs else engine(inputs.to(lab.device))
            loss = torch.nn.functional.mse_loss(output, targets.to(lab.device))
            engine.backward(loss, retain_graph=i + 1 < len(outputs))
        engine.step()
    return lab.parameters(engine)
