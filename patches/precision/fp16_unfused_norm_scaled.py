"""fp16 without ZeRO, optimizer other than FusedAdam: the reported gradient norm is multiplied by the loss scale.

Why: FP16_UnfusedOptimizer, which fp16 training without ZeRO uses for torch's optimizers, SGD, Lion and Lamb, stores the
    norm of the scaled gradients for `engine.get_global_grad_norm()`. All other optimizers of DeepSpeed divide it by the
    loss scale. Logs show a norm that is 65536 times too large and doubles when the scale does. The step itself, and
    clipping, are correct.
How: the norm is divided by the scale that the gradients are divided by.
Changes: only what `get_global_grad_norm` reports (transformers' Trainer logs it as grad_norm); no step, no checkpoint.
Workaround: Scripts compute the norm from the gradients themselves. You can keep it. A division of
    `engine.get_global_grad_norm()` by the loss scale must be removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_NORM = "self._global_grad_norm = get_global_norm(norm_list=norm_groups)"
_CLIP = "self.unscale_and_clip_grads(self._global_grad_norm)"
_CLIP_LAMB = "combined_scale = self.unscale_and_clip_grads(self._global_grad_norm, apply_scale=False)"
_END = "for fp32_group, fp16_group in zip(self.fp32_groups, self.fp16_groups):\n    ...\nreturn self.overflow"
_DIVIDE = "self._global_grad_norm = self._global_grad_norm / self.loss_scale"
_EFFECT = "the reported gradient norm was divided by the loss scale"
_WHEN = "type(self.loss_scale) not in (int, float) or self.loss_scale != 1"  # a tensor is not read


def _meets(job: Job) -> bool:
    scaled = job.may_be("fp16") and job.get("fp16", "loss_scale") != 1
    return job.stage == 0 and scaled and job.fused_adam is False


PATCH = Patch(
    title="fp16 without ZeRO, except FusedAdam: the reported gradient norm is multiplied by the loss scale",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(f"{_UNFUSED}.step", after=_CLIP, code=_DIVIDE, effect=_EFFECT, when=_WHEN),
        Edit(f"{_UNFUSED}.step_fused_lamb", after=_CLIP_LAMB, code=_DIVIDE, effect=_EFFECT, when=_WHEN),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1292": "introduced",
    },
    present=(
        # the norm of the scaled gradients, which nothing changes up to the end of the step
        Source(f"{_UNFUSED}.step", _NORM),
        Source(f"{_UNFUSED}.step", f"{_CLIP}\nself.optimizer.step()\n{_END}"),
        Source(f"{_UNFUSED}.step_fused_lamb", _NORM),
        Source(
            f"{_UNFUSED}.step_fused_lamb",
            f"{_CLIP_LAMB}\n"
            "self.optimizer.step(grads=grads_groups, output_params=self.fp16_groups, scale=combined_scale)\n"
            f"{_END}",
        ),
    ),
    config=_meets,
)

_LOSS_SCALE = 16


def reproduce(lab: Lab) -> str:
    models, reference = lab.models, lab.reference
    from .. import _half as half

    inputs, targets = models.regression_batch(rank=0, step=0)
    model = models.MLP()
    [expected] = reference.train(model, [[(inputs, targets)]], model.loss, "SGD", lr=0.1).gradient_norms

    model = models.MLP()
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
        raise BugPresent(f"with a loss scale of {_LOSS_SCALE} the reported norm is {ratio:.2f} times the correct one")
    assert abs(ratio - 1) < 0.01, f"the reported norm is {ratio} times the correct one"
    return f"with a loss scale of {_LOSS_SCALE} the reported norm is {ratio:.3f} times plain PyTorch's"
