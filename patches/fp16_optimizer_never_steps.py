"""fp16 without ZeRO, with FusedAdam or 1-bit Adam: the weights never change.

Why: without ZeRO an fp16 engine puts FusedAdam (DeepSpeed's own, which is "Adam" in a config on a GPU, or apex's),
    OneBitAdam and ZeroOneAdam into FP16_Optimizer. Since 0.17.6 the `return` that skips a step whose gradients overflow
    stands one level too far left: `step` returns after the check of each step. Gradients are zeroed, the schedule of
    the learning rate goes on, the loss is what it was. bf16, other optimizers and ZeRO-1 to 3 are not concerned.
How: the early return is taken only where the gradients did overflow.
Changes: for all whom this concerns training begins: up to now the weights were the initial ones. A checkpoint written
    without the patch has those, an optimizer without momentum, and a learning rate schedule that has run all the same:
    start anew.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/7515 (0.17.6), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7645 (0.18.2).
Retire: when DeepSpeed 0.18.1 is no longer supported here.
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
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/7515",
        "https://github.com/deepspeedai/DeepSpeed/pull/7645",
    ),
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
)

_LEARNING_RATE = 0.01
_BETAS = (
    0.0,
    0.0,
)  # without bias correction, in which a step before the first would count: fp16_step_at_initialization
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
    initial = half.train(MLP(), torch.float16, [], torch.optim.SGD)
    expected = half.train(
        MLP(),
        torch.float16,
        [[batch] for batch in batches],
        lambda p: torch.optim.AdamW(p, _LEARNING_RATE, betas=_BETAS, weight_decay=0.0),
    )

    half.provide_fused_adam(lab)
    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "Adam", "params": {"lr": _LEARNING_RATE, "betas": _BETAS, "torch_adam": False}},
        "fp16": {
            "enabled": True,
            "initial_scale_power": 0,
        },  # loss scale 1: later releases have a fault there
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()

    parameters = lab.parameters(engine)
    unchanged = largest_difference(parameters, initial)
    if unchanged.absolute == 0.0:
        raise BugPresent(f"after {_STEPS} steps of {_LEARNING_RATE:g} all parameters are the initial ones, bit for bit")
    difference = largest_difference(parameters, expected)
    assert difference.relative < 0.01, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters are those of AdamW on fp32 weights within {difference.relative:.1e}"
