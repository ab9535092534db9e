"""fp16 without ZeRO, and bf16 from 0.17.6 on: the optimizer makes a step before the training.

Why: FP16_Optimizer and FP16_UnfusedOptimizer allocate the optimizer's state by a step with gradients of zero. It
    counts: AdamW and SGD with weight decay decay each weight once more, Adam with L2 regularization and Adagrad move it
    by about the learning rate, and Adam is one step ahead in its bias correction: the first real update is 0.74 of what
    it should be (betas 0.9 and 0.999). Nothing shows it.
How: that step is left out, as upstream does in ZeRO; the state is allocated in the first real step, as by PyTorch. The
    1-bit optimizers need their first step to set themselves up and change no weight in it: they keep it.
Changes: fp16 without ZeRO, and bf16 without ZeRO from 0.17.6 on: the training begins with the model's own weights, and
    with Adam its first updates are larger. A job that resumes from a checkpoint written without the patch goes on as it
    would have: its weights were decayed once too often, and Adam's steps count one more.
Upstream: not fixed in 0.19.8. Brought by https://github.com/deepspeedai/DeepSpeed/pull/380; in ZeRO-1 to 3 and
    BF16_Optimizer fixed by https://github.com/deepspeedai/DeepSpeed/pull/5104: zero_step_at_initialization. bf16 came
    to these optimizers by https://github.com/deepspeedai/DeepSpeed/pull/7515.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it makes no such step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZERS = (
    "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer",
)

PATCH = Patch(
    title="fp16 (bf16 from 0.17.6 on) without ZeRO: the optimizer makes a step before the training",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=tuple(
        Edit(
            f"{optimizer}.initialize_optimizer_states",
            replace="self.optimizer.step()",
            # of DeepSpeed's optimizers the 1-bit ones have this, False up to their first step
            code="if not getattr(self.optimizer, 'initialize', True):\n    self.optimizer.step()",
        )
        for optimizer in _OPTIMIZERS
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/380",
        "https://github.com/deepspeedai/DeepSpeed/pull/5104",
        "https://github.com/deepspeedai/DeepSpeed/pull/7515",
    ),
    fixed_in=None,
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab import half, initial_step

    half.provide_fused_adam(lab)
    # a loss scale of 1 does not underflow; later releases have a fault at others
    precisions: dict[str, tuple[Any, dict[str, Any]]] = {
        "fp16": (torch.float16, {"fp16": {"enabled": True, "initial_scale_power": 0}}),
        "bf16": (torch.bfloat16, {"bf16": {"enabled": True}}),
    }
    return initial_step.report(
        {
            f"{name} {'fused' if fused else 'unfused'}": initial_step.compare(lab, dtype, config, fused)
            for name, (dtype, config) in precisions.items()
            for fused in (True, False)
        }
    )
