"""fp16 without ZeRO, with FusedAdam or 1-bit Adam: the weights never change.

Why: without ZeRO an fp16 engine wraps FusedAdam (DeepSpeed's own, which is "Adam" in a config on a GPU, or apex's),
    OneBitAdam and ZeroOneAdam in FP16_Optimizer. Since 0.17.6 the `return` that skips a step with overflowing gradients
    is indented one level too little: every `step` returns after the check. Gradients are zeroed, the learning rate
    schedule advances, the loss stays the same. bf16, other optimizers and ZeRO-1 to 3 are not affected.
How: `step` returns early only if the gradients did overflow.
Changes: affected jobs begin to train: without the patch the weights stay the initial ones. A checkpoint written without
    the patch has those, an optimizer without momentum, and a learning rate schedule that has advanced anyway: start
    from scratch.
Workaround: The config sets `"torch_adam": true`, or the script passes torch's own optimizer. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer.step"

PATCH = Patch(
    title="fp16 without ZeRO + FusedAdam or 1-bit Adam: the weights never change",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.18.2"},
    changes=(
        Edit(
            _STEP,
            replace="if self.timers:\n    self.timers.log(OVERFLOW_TIMERS)\nreturn self.overflow",
            code="if self.overflow:\n    if self.timers:\n        self.timers.log(OVERFLOW_TIMERS)\n"
            "    return self.overflow",
            effect="the optimizer made its step (unpatched: it returns before the step)",
            when="not self.overflow",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7645": "fixed in 0.18.2",
    },
    fixed_in="0.18.2",
    present=(
        Source(
            _STEP,
            "if self.use_grad_scaling:\n    prev_scale = self.cur_scale\n    self._update_scale(self.overflow)\n"
            "    if self.overflow:\n        ...\n    if self.timers:\n        ...\n    return self.overflow",
        ),
    ),
    fixed=(
        Source(
            _STEP,
            "if self.overflow:\n    if self.verbose:\n        ...\n    for i, group in enumerate(self.fp16_groups):\n"
            "        ...\n    if self.timers:\n        ...\n    return self.overflow",
        ),
    ),
    config=lambda job: job.stage == 0 and job.may_be("fp16") and job.fused_adam is not False,
)

_LEARNING_RATE = 0.01
# no bias correction, in which the step of fp16_step_at_initialization would count
_BETAS = (0.0, 0.0)
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from .. import _half as half

    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    initial = half.train(models.MLP(), torch.float16, [], torch.optim.SGD)
    expected = half.train(
        models.MLP(),
        torch.float16,
        [[batch] for batch in batches],
        lambda p: torch.optim.AdamW(p, _LEARNING_RATE, betas=_BETAS, weight_decay=0.0),
    )

    half.provide_fused_adam(lab)
    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "Adam", "params": {"lr": _LEARNING_RATE, "betas": _BETAS, "torch_adam": False}},
        "fp16": {"enabled": True, "initial_scale_power": 0},  # loss scale 1: later releases have a bug with others
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()

    parameters = lab.parameters(engine)
    unchanged = reference.largest_difference(parameters, initial)
    if unchanged.absolute == 0.0:
        raise BugPresent(
            f"after {_STEPS} steps of {_LEARNING_RATE:g} all parameters equal the initial ones bit for bit"
        )
    difference = reference.largest_difference(parameters, expected)
    assert difference.relative < 0.01, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters match AdamW on fp32 weights within {difference.relative:.1e}"
