"""With fp16, each step at which the dynamic loss scale grows uses half the gradient.

Why: the optimizers for fp16 training, of all ZeRO stages, update the loss scale before they divide the gradients by it.
    At each step at which it grows (`loss_scale_window` steps without an overflow, 1000 by default), gradients that were
    scaled by the old value are divided by the new one, which is twice as large. Clipping compares half the norm.
    Nothing fails; the norm that ZeRO-3 and training without ZeRO report at that step is half the correct one.
How: without an overflow, the loss scale is updated after the step, and with it the errors that ZeRO++ LoCo keeps
    (0.16.2 to 0.19.7), which are scaled by it.
Changes: fp16 with a dynamic loss scale (`loss_scale` 0): one step in `loss_scale_window` uses its whole gradient. The
    scale itself grows and shrinks at the same steps as before. Only that step is wrong in a checkpoint written without
    the patch. ZenFlow and SuperOffload, which have their own `step`, are not covered.
Workaround: The config sets a `loss_scale`, which never grows. You can keep it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Patch, Replace, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ZERO_1_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_ZERO_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_OPTIMIZERS = (
    _ZERO_1_2,
    _ZERO_3,
    "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer",
)


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    """The step, followed by the deferred update of the loss scale."""

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._dsfix_scale_due = False
        try:
            return original(self, *args, **kwargs)
        finally:
            if self.__dict__.pop("_dsfix_scale_due"):
                before = self.loss_scale
                self._update_scale(False)
                if isinstance(before, (int, float)) and self.loss_scale > before:
                    took_effect(
                        __name__, "the loss scale grew after the step (unpatched: before it, which halves the gradient)"
                    )
                if hasattr(self, "_loco_err_buf_update"):  # it was not told of the growth within the step
                    self._loco_err_buf_update(False, self.loss_scale / before)

    return step


def _update_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    """The update, deferred to the end of the step unless there was an overflow."""

    @functools.wraps(original)
    def update_scale(self: Any, overflow: bool = False) -> None:
        if overflow or "_dsfix_scale_due" not in self.__dict__:
            original(self, overflow)
        else:
            self._dsfix_scale_due = True

    return update_scale


PATCH = Patch(
    title="fp16: gradients are halved in each step in which the dynamic loss scale grows",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        *(Replace(f"{optimizer}.step", _step) for optimizer in _OPTIMIZERS),
        *(Replace(f"{optimizer}._update_scale", _update_scale) for optimizer in _OPTIMIZERS),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/commit/ec79b2390101": "introduced",
    },
    # the update right after the overflow check, and the division by the updated scale
    present=(
        Source(f"{_ZERO_1_2}.step", "prev_scale = self.loss_scale\nself._update_scale(self.overflow)"),
        Source(f"{_ZERO_1_2}.unscale_and_clip_grads", "combined_scale = self.loss_scale"),
        Source(f"{_ZERO_3}.unscale_and_clip_grads", "combined_scale = self.loss_scale"),
    ),
    config=lambda job: job.may_be("fp16") and not job.get("fp16", "loss_scale"),
)

_STEPS = 6
_LEARNING_RATE = 0.2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models = lab.models
    from .. import _half as half

    def shares(stage: int) -> list[tuple[float, bool]]:
        """For each step: the share of the gradient that it used, and whether the loss scale grew."""
        model = models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "fp16": {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2, "hysteresis": 1},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        seen = []
        plain = models.MLP()
        for number in range(_STEPS):
            inputs, targets = models.regression_batch(rank=0, step=number)
            before, scale = lab.parameters(engine), engine.optimizer.loss_scale
            plain.load_state_dict(before)
            gradients = torch.autograd.grad(plain.loss(inputs, targets), list(plain.parameters()))
            gradient = torch.cat([each.flatten() for each in gradients])
            engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
            engine.step()
            after = lab.parameters(engine)
            update = torch.cat([(before[name] - after[name]).flatten() for name, _ in plain.named_parameters()])
            share = (update @ gradient / (gradient @ gradient)).item() / _LEARNING_RATE
            seen.append((share, engine.optimizer.loss_scale > scale))
        return seen

    halved = []
    for stage in (0, 2, 3):
        seen = shares(stage)
        assert any(grew for _, grew in seen), f"ZeRO-{stage}: the loss scale did not grow in {_STEPS} steps"
        if all(abs(share - (0.5 if grew else 1.0)) < 0.05 for share, grew in seen):
            number = [grew for _, grew in seen].index(True)
            halved.append(f"ZeRO-{stage}: step {number}, at which the loss scale grew, with {seen[number][0]:.2f}")
            continue
        assert all(abs(share - 1.0) < 0.05 for share, _ in seen), f"ZeRO-{stage}: shares of the gradient {seen}"
    if halved:
        raise BugPresent(f"a part of the gradient is used: {'; '.join(halved)}; 1.00 in all other steps")
    return f"each of {_STEPS} steps used its whole gradient, with and without ZeRO, while the loss scale grew"
