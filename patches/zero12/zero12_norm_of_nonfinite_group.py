"""ZeRO-1/2: the reported gradient norm is finite although a gradient is inf or nan.

Why: DeepSpeed's norm of a parameter group with a gradient that is inf or nan is -1. Combined with the other groups' it
    counts as 1: `get_global_grad_norm()` and the monitors report an ordinary norm (1.0 for one group), and clipping
    divides by it, while weights become inf or nan. Nothing fails. fp16 finds inf and nan earlier, and so does bf16 with
    `bf16.check_grad_overflow` (the default since 0.19.3). From 0.13.2 to 0.16.5 the norm is nan.
How: the norm of such a group is inf, and so is the total norm, as in 0.19.8. The step is made, as without the patch.
    With optimizer offload it stays as it is: that norm is of the gradients as they were before `safe_set_full_grad`.
Changes: with clipping, in such a step, all finite gradients become 0, as by PyTorch's `clip_grad_norm_`; weights whose
    gradient is inf or nan are lost either way. A checkpoint from before such a step is intact, and can be resumed.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def _meets(job: Job) -> bool:
    checked = job.get("bf16", "check_grad_overflow", default=job.release >= Version("0.19.3"))
    if job.stage not in (1, 2) or not job.clips or job.offloads_optimizer or job.on("fp16"):
        return False
    return not (job.on("bf16") and checked)


PATCH = Patch(
    title="ZeRO-1/2: with an inf or nan gradient the reported norm is finite, and clipping divides by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.6,<0.19.8"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.get_grad_norm_direct",
            replace="mask_nan_or_inf_with_val_inplace(total_norm, device=self.device)",
            code="total_norm.masked_fill_(~total_norm.isfinite(), float('inf'))",
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7171": "introduced in 0.16.6",
    },
    fixed_in="0.19.8",
    fixed=(
        Source(f"{_OPTIMIZER}.scaled_global_norm", "return combine_grad_norm_groups(norm_groups, norm_type=norm_type)"),
    ),
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    from ._nonfinite import reported_norm

    return "; ".join(reported_norm(lab, stage) for stage in (1, 2))
