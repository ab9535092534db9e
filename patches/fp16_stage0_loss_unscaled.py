"""fp16 without ZeRO: gradients are divided by the loss scale although the loss was not multiplied by it.

Why: without ZeRO an fp16 engine wraps its optimizer in FP16_Optimizer or FP16_UnfusedOptimizer, whose `backward`
    multiplies the loss by the loss scale and whose `step` divides the gradients by it. Since 0.18.3 `engine.backward`
    no longer calls the former, and scales the loss for ZeRO only. Gradients become 65536 times too small, and smaller
    still as the scale grows, because nothing overflows: SGD and Lion stand still or nearly so, Adam's updates are
    damped by its epsilon, clipping never clips, and what fp16 cannot represent is lost. Nothing fails.
How: `engine.backward` multiplies the loss, in fp32, by the wrapper's loss scale, as through 0.18.2.
Changes: in fp16 training without ZeRO, gradients and their norm become larger by the loss scale, as they are through
    0.18.2 and with ZeRO; a learning rate tuned without the patch may be wrong. Callers that multiply the loss
    themselves must stop doing so. A checkpoint written without the patch can be resumed: its weights stay, but Adam's
    moments in it are too small by the scale and its square, and its loss scale may be so large that the first steps are
    skipped until it fits: it is better to load only the weights (`load_module_only=True`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.engine:DeepSpeedEngine.backward"
_SCALE = "if isinstance(self.optimizer, ZeROOptimizer):\n    ...\nelif self.torch_autocast_z0_gradscaler:\n    ..."

PATCH = Patch(
    title="fp16 without ZeRO: gradients are divided by the loss scale, but the loss was not multiplied by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3"},
    changes=(
        Edit(
            _BACKWARD,
            before=_SCALE,
            # in fp32: in fp16 the product is infinite
            code="if self.fp16_enabled() and isinstance(self.optimizer, (FP16_Optimizer, FP16_UnfusedOptimizer)):\n"
            "    loss = loss.float() * self.optimizer.loss_scale",
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8393": "proposed fix",
    },
    fixed_in=None,
    present=(Source("deepspeed.runtime.engine:DeepSpeedEngine.scale", f"scaled_loss = loss\n{_SCALE}"),),
    fixed=(Source(_BACKWARD, "self.fp16_enabled()"),),
    config=lambda job: job.stage == 0 and job.may_be("fp16") and job.get("fp16", "loss_scale") != 1,
)

_LEARNING_RATE = 0.1
_STEPS = 3
_LOSS_SCALE = 16


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from dsfix.lab import half

    steps = [[models.regression_batch(rank=0, step=step)] for step in range(_STEPS)]

    def plain(learning_rate: float) -> dict[str, Any]:
        return half.train(models.MLP(), torch.float16, steps, functools.partial(torch.optim.SGD, lr=learning_rate))

    expected, divided = plain(_LEARNING_RATE), plain(_LEARNING_RATE / _LOSS_SCALE)

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "initial_scale_power": _LOSS_SCALE.bit_length() - 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()

    return reference.compare(
        lab.parameters(engine),
        expected,
        {f"those of gradients divided by the loss scale of {_LOSS_SCALE}": divided},
        within=0.001,
        after=f"after {_STEPS} steps",
    )
