"""fp16 without ZeRO, with any optimizer but FusedAdam: the gradient norm is reported times the loss scale.

Why: FP16_UnfusedOptimizer, which training in fp16 without ZeRO uses for torch's optimizers, SGD, Lion and Lamb, keeps
    the norm of the scaled gradients for `engine.get_global_grad_norm()`. All other optimizers of DeepSpeed divide it by
    the loss scale. A log shows a norm 65536 times too large that doubles when the scale does. The step itself, and
    clipping, are right.
How: the norm is divided by the scale that the gradients are divided by.
Changes: what is reported, to users of `get_global_grad_norm` (transformers' Trainer logs it as grad_norm); no step, no
    checkpoint.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/1292; not fixed in 0.19.8, and not known to be
    reported.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it divides the norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_DIVIDE = "self._global_grad_norm = self._global_grad_norm / self.loss_scale"

PATCH = Patch(
    title="fp16 without ZeRO, not FusedAdam: the gradient norm is reported times the loss scale",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(f"{_UNFUSED}.step", after="self.unscale_and_clip_grads(self._global_grad_norm)", code=_DIVIDE),
        Edit(
            f"{_UNFUSED}.step_fused_lamb",
            after="combined_scale = self.unscale_and_clip_grads(self._global_grad_norm, apply_scale=False)",
            code=_DIVIDE,
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/1292",),
    fixed_in=None,
)

_LOSS_SCALE = 16


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import train

    inputs, targets = regression_batch(rank=0, step=0)
    model = MLP()
    [expected] = train(model, [[(inputs, targets)]], model.loss, "SGD", lr=0.1).gradient_norms

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "fp16": {"enabled": True, "initial_scale_power": 4},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
    engine.step()

    ratio = float(engine.get_global_grad_norm()) / expected
    if abs(ratio / _LOSS_SCALE - 1) < 0.01:
        raise BugPresent(f"with a loss scale of {_LOSS_SCALE} the reported norm is {ratio:.2f} times the right one")
    assert abs(ratio - 1) < 0.01, f"the reported norm is {ratio} times the right one"
    return f"with a loss scale of {_LOSS_SCALE} the reported norm is {ratio:.3f} times plain PyTorch's"
