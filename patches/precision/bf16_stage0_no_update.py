"""bf16 without ZeRO, optimizer other than FusedAdam: gradients are never zeroed; since 0.18.3 also divided by 65536.

Why: since 0.17.6 a bf16 engine without ZeRO wraps its optimizer in FP16_UnfusedOptimizer: torch's AdamW from the user,
    SGD, Lion, Lamb, all but FusedAdam. The engine treats the wrapper as BF16_Optimizer, which zeroes gradients itself,
    but the wrapper does not: each step uses the sum of the gradients of all steps so far. The wrapper also has fp16's
    dynamic loss scale. Through 0.18.2 it multiplies the loss by it and divides the gradients. Since 0.18.3 nothing
    multiplies the loss: with SGD the weights no longer move, Adam's updates are damped by its epsilon, and clipping
    never clips.
How: the engine zeroes the wrapper's gradients after each step; with bf16 parameters the wrapper's loss scale is 1, even
    if a checkpoint contains another.
Changes: updates and gradient norms become those of the step's own gradients; a learning rate tuned without the patch is
    wrong. The weights of a checkpoint written without it stay, but its moments come from sums of stale gradients, since
    0.18.3 divided by 65536: load only the weights (`load_module_only=True`).
Workaround: Scripts call `engine.zero_grad()` after each step, and since 0.18.3 multiply the loss by
    `engine.optimizer.loss_scale`. You can keep it: the scale is 1.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_IS_BF16 = "any(p.dtype == torch.bfloat16 for group in self.fp16_groups for p in group)"
_NO_SCALE = f"if {_IS_BF16}:\n    self.dynamic_loss_scale, self.cur_scale = False, 1.0"

PATCH = Patch(
    title="bf16 without ZeRO, except FusedAdam: gradients are never zeroed; since 0.18.3 also divided by 65536",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.18.6"},
    changes=(
        Edit(
            f"{_ENGINE}._take_model_step",
            replace='self.zero_optimization() and hasattr(self.optimizer, "zero_grad")',
            # BF16_Optimizer, which a pipeline has on 0.18.5, zeroes its gradients itself
            code="(self.zero_optimization() or not isinstance(self.optimizer, BF16_Optimizer)) "
            'and hasattr(self.optimizer, "zero_grad")',
        ),
        Edit(
            f"{_UNFUSED}.__init__", before="self.custom_loss_scaler = False", code=_NO_SCALE, effect=RAN, when=_IS_BF16
        ),
        Edit(f"{_UNFUSED}.load_state_dict", after="self.cur_iter = state_dict['cur_iter']", code=_NO_SCALE),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7837": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "introduced in 0.17.6: never zeroed",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3: the loss is not scaled",
        "https://github.com/deepspeedai/DeepSpeed/pull/7839": "fixed in 0.18.6, not for a checkpoint's loss scale",
    },
    fixed_in="0.18.6",
    present=(
        Source(
            f"{_ENGINE}._configure_optimizer",
            "lp_dtype = torch.float16 if optimizer_wrapper == FP16 else torch.bfloat16",
        ),
    ),
    fixed=(Source(f"{_UNFUSED}.__init__", "self.loss_scale_config = loss_scale_config"),),
    config=lambda job: job.stage == 0 and job.may_be("bf16"),
)

_LEARNING_RATE = 0.1
_STEPS = 3
_LOSS_SCALE = 65536


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from .. import _half as half

    steps = [[models.regression_batch(rank=0, step=step)] for step in range(_STEPS)]

    def plain(learning_rate: float, zero_grad: bool) -> dict[str, Any]:
        optimizer = functools.partial(torch.optim.SGD, lr=learning_rate)
        return half.train(
            models.MLP(), torch.bfloat16, steps, optimizer, accumulation=torch.bfloat16, zero_grad=zero_grad
        )

    expected = plain(_LEARNING_RATE, True)
    summed = plain(_LEARNING_RATE, False)
    summed_and_divided = plain(_LEARNING_RATE / _LOSS_SCALE, False)

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()

    return reference.compare(
        lab.parameters(engine),
        expected,
        {
            "those of gradients summed over all steps": summed,
            f"those of gradients summed over all steps and divided by {_LOSS_SCALE}": summed_and_divided,
        },
        within=0.01,
        after=f"after {_STEPS} steps",
    )
