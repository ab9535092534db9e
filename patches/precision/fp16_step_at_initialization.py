"""fp16 without ZeRO, and bf16 since 0.17.6: the optimizer takes a step before training begins.

Why: FP16_Optimizer and FP16_UnfusedOptimizer allocate the optimizer's state by a step with zero gradients. The step has
    effects: AdamW and SGD with weight decay decay each weight once more, Adam with L2 regularization and Adagrad move
    it by about the learning rate, and Adam is one step ahead in its bias correction: the first real update is 0.74 of
    what it should be (betas 0.9 and 0.999). Nothing fails.
How: that step is skipped, as upstream does in ZeRO; the state is allocated in the first real step, as in PyTorch. The
    1-bit optimizers need their first step to set themselves up and change no weight in it: they keep it.
Changes: fp16 without ZeRO, and bf16 without ZeRO since 0.17.6: training begins with the model's own weights, and with
    Adam the first updates are larger. A job that resumes from a checkpoint written without the patch continues as it
    would have: its weights were decayed once too often, and Adam's step count is one too high.
Workaround: None in the script; ZeRO, from 0.13.2 on, helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZERS = (
    "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer",
)
# whether a step with zero gradients moves a weight, or counts for Adam's bias correction
_MATTERS = """any(
    ({"betas", "eps"} <= group.keys() and group.get("bias_correction", True))
    or (group.get("weight_decay") and isinstance(group.get("lr"), float) and group["lr"] != 0)
    for group in self.optimizer.param_groups
)"""


def _meets(job: Job) -> bool:
    wrapped = job.may_be("fp16") or (job.may_be("bf16") and job.release >= Version("0.17.6") and not job.pipeline)
    return job.stage == 0 and wrapped and job.optimizer in ("adam", "adamw")


PATCH = Patch(
    title="fp16 (bf16 since 0.17.6) without ZeRO: the optimizer takes a step before training begins",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=tuple(
        Edit(
            f"{optimizer}.initialize_optimizer_states",
            replace="self.optimizer.step()",
            # of DeepSpeed's optimizers only the 1-bit ones have this; it is False until their first step
            code="if not getattr(self.optimizer, 'initialize', True):\n    self.optimizer.step()",
            effect="the optimizer made no step with zero gradients before training",
            when=f"getattr(self.optimizer, 'initialize', True) and {_MATTERS}",
        )
        for optimizer in _OPTIMIZERS
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/380": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/5104": "related: fixed in ZeRO, see zero_step_at_initialization",
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "related: bf16 uses these optimizers since 0.17.6",
    },
    present=(
        *(Source(f"{optimizer}.__init__", "self.initialize_optimizer_states()") for optimizer in _OPTIMIZERS),
        # nothing saves the weights before the step, and nothing restores them after it
        *(
            Source(
                f"{optimizer}.initialize_optimizer_states",
                f"for i, group in enumerate(self.{groups}):\n    ...\n"
                "self.optimizer.step()\n"
                "for i, group in enumerate(self.fp16_groups):\n    ...",
            )
            for optimizer, groups in zip(_OPTIMIZERS, ("fp16_groups", "fp32_groups"))
        ),
    ),
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _half as half
    from .. import _initial_step as initial_step

    half.provide_fused_adam(lab)
    # a loss scale of 1 does not underflow; later releases have a bug with others
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
