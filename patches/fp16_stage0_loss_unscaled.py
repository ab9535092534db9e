"""fp16 without ZeRO: gradients are divided by the loss scale, and the loss was not multiplied by it.

Why: without ZeRO an fp16 engine puts its optimizer into FP16_Optimizer or FP16_UnfusedOptimizer, whose `backward`
    multiplies the loss by the loss scale, and whose `step` divides the gradients by it. Since 0.18.3 `engine.backward`
    does not call the former any more, and scales the loss for ZeRO only. Gradients become 65536 times too small, and
    smaller still as the scale grows, for nothing overflows: SGD and Lion stand still or nearly so, Adam's updates are
    damped by its epsilon, clipping never clips, and what fp16 cannot hold is lost. Nothing fails.
How: `engine.backward` multiplies the loss, in fp32, by the wrapper's loss scale, as up to 0.18.2.
Changes: for all who train in fp16 without ZeRO gradients and their norm become the loss scale times larger, which is
    what they are up to 0.18.2 and with ZeRO; a learning rate that was found without the patch may be the wrong one. Who
    multiplies the loss on his own has to leave that out. A checkpoint written without the patch resumes: its weights
    are what they are; Adam's moments in it are too small by the scale and its square, and its loss scale may be so
    large that the first steps are skipped until it fits: better load the weights only (`load_module_only=True`).
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/7665 (0.18.3); a fix is proposed in
    https://github.com/deepspeedai/DeepSpeed/pull/8393.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it has
    https://github.com/deepspeedai/DeepSpeed/pull/8393 or its like.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.engine:DeepSpeedEngine.backward"

PATCH = Patch(
    title="fp16 without ZeRO: gradients are divided by the loss scale, the loss was not multiplied by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3"},
    changes=(
        Edit(
            _BACKWARD,
            before="if isinstance(self.optimizer, ZeROOptimizer):\n    ...\n"
            "elif self.torch_autocast_z0_gradscaler:\n    ...",
            # in fp32: in fp16 the product is infinite
            code="if self.fp16_enabled() and isinstance(self.optimizer, (FP16_Optimizer, FP16_UnfusedOptimizer)):\n"
            "    loss = loss.float() * self.optimizer.loss_scale",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/7665",
        "https://github.com/deepspeedai/DeepSpeed/pull/8393",
    ),
    fixed_in=None,
    fixed=(Source(_BACKWARD, "self.fp16_enabled()"),),
)

_LEARNING_RATE = 0.1
_STEPS = 3
_LOSS_SCALE = 16


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    steps = [[regression_batch(rank=0, step=step)] for step in range(_STEPS)]

    def plain(learning_rate: float) -> dict[str, Any]:
        return half.train(MLP(), torch.float16, steps, functools.partial(torch.optim.SGD, lr=learning_rate))

    expected, divided = plain(_LEARNING_RATE), plain(_LEARNING_RATE / _LOSS_SCALE)

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "initial_scale_power": _LOSS_SCALE.bit_length() - 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()

    parameters = lab.parameters(engine)
    difference = largest_difference(parameters, expected)
    if largest_difference(parameters, divided).relative < 0.001 < difference.relative:
        raise BugPresent(f"after {_STEPS} steps gradients were divided by a loss scale of {_LOSS_SCALE}: {difference}")
    assert difference.relative < 0.001, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters are those of SGD on fp32 weights within {difference.relative:.1e}"
