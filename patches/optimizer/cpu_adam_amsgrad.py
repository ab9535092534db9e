"""Optimizer offload ignores Adam's `amsgrad`.

Why: DeepSpeedCPUAdam takes `"amsgrad": true`, keeps it in its groups and checkpoints, and computes plain Adam.
    FusedAdam rejects it, and so does DeepSpeedCPUAdam since 0.19.8.
How: the first step of the engine fails with the error of 0.19.8; a job that only evaluates, or converts a checkpoint,
    is not affected. `amsgrad` of a single group, or of a group from a checkpoint, is not checked.
Changes: such a job ends in its first step. To continue as before, also from its checkpoint, it leaves `amsgrad` out; to
    use it, it sets `"torch_adam": true`, and `"zero_force_ds_cpu_optimizer": false` beside the optimizer.
Workaround: Scripts pass torch's AdamW and set `"zero_force_ds_cpu_optimizer": false`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab


def refuse(zero: Any) -> None:
    """Raises RuntimeError if a DeepSpeedCPUAdam in ZeRO was made to use AMSGrad."""
    optimizer = getattr(zero, "optimizer", None)
    if not getattr(optimizer, "defaults", {}).get("amsgrad"):
        return
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    if isinstance(optimizer, DeepSpeedCPUAdam):
        took_effect(__name__, "an optimizer with amsgrad was rejected (unpatched: amsgrad is ignored)")
        raise RuntimeError(
            "DeepSpeedCPUAdam does not support AMSGrad; without dsfix (cpu_adam_amsgrad) it would silently use plain "
            'Adam. Remove "amsgrad", or set "torch_adam": true and, next to the optimizer section, '
            '"zero_force_ds_cpu_optimizer": false'
        )


PATCH = Patch(
    title="Optimizer offload ignores Adam's amsgrad",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine._take_model_step",
            before="if self.gradient_clipping() > 0.0:\n    ...",
            code="refuse(self.optimizer)",
            uses=(refuse,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/391": "introduced"},
    fixed_in="0.19.8",
    fixed=(
        Source(
            "deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam.add_param_group",
            "if param_group.get('amsgrad', self.defaults['amsgrad']):\n    ...",
        ),
    ),
    config=lambda job: (
        job.optimizer in ("adam", "adamw")
        and job.device("offload_optimizer") != "none"
        and bool(job.get("optimizer", "params", "amsgrad"))
        and not job.get("optimizer", "params", "torch_adam")
    ),
)

_STEPS = 6


def reproduce(lab: Lab) -> str:
    models, torch = lab.models, lab.torch
    from .. import _half as half

    half.provide_cpu_adam(lab)
    # after a step with large gradients AMSGrad makes smaller steps
    batches = []
    for step in range(_STEPS):
        inputs, targets = models.regression_batch(rank=0, step=step)
        batches.append((inputs, targets * (30 if step == 1 else 1)))
    options = {"lr": 0.01, "weight_decay": 0.0, "betas": [0.9, 0.8]}
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {**options, "amsgrad": True, "torch_adam": False}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    model = models.MLP()
    try:
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
    except RuntimeError as error:
        if "AMSGrad" not in str(error):
            raise
        return f"refused: {str(error).partition(':')[0]}"

    def trained(amsgrad: bool) -> dict[str, Any]:
        model, steps = models.MLP(), [[batch] for batch in batches]
        training = lab.reference.train(model, steps, model.loss, "AdamW", **options, amsgrad=amsgrad)
        parameters: dict[str, Any] = training.parameters
        return parameters

    return lab.reference.compare(
        lab.parameters(engine), trained(True), {"those of plain Adam": trained(False)}, after=f"after {_STEPS} steps"
    )
