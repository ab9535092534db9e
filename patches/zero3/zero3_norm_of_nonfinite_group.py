"""ZeRO-3: the gradient norm is not inf although a gradient is, and is clipped by.

Why: as in ZeRO-1 and ZeRO-2 (zero12_norm_of_nonfinite_group): -1, the norm of a parameter group with a gradient that is
    inf or nan, counts as 1 beside the other groups' norms; from 0.13.0 to 0.16.5 it is nan, and clipping makes all
    weights nan. fp16 finds inf and nan earlier.
How: the norm of such a group is inf, and so is that of all, as in 0.19.8. The step is made, as without the patch; with
    `bf16.check_grad_overflow`, zero3_bf16_nonfinite_step skips it. SuperOffload and ZenFlow are not covered.
Changes: with clipping, the other groups' gradients become 0 in such a step, as by PyTorch's `clip_grad_norm_`; the
    group's own weights are lost either way. A checkpoint from before such a step is intact.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. That can stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from .._norms import infinite

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.step"


def total(norms: Sequence[Any], combined: Any) -> Any:
    """combined: the release's norm of all groups, right where each is finite."""
    import torch

    found = infinite(norms)
    if torch.is_tensor(combined):
        largest = torch.stack([torch.as_tensor(norm, device=combined.device) for norm in found]).max()
        return torch.where(largest.isinf(), float("inf"), combined)
    return float("inf") if float("inf") in map(float, found) else combined


PATCH = Patch(
    title="ZeRO-3: with an inf gradient the reported norm is finite or nan, and clipping divides by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _STEP,
            before="self._global_grad_norm = scaled_global_grad_norm / self.loss_scale",
            code="scaled_global_grad_norm = total(norm_groups, scaled_global_grad_norm)",
            uses=(total,),
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7171": "related: -1 instead of nan since 0.16.6",
    },
    fixed_in="0.19.8",
    fixed=(Source(_STEP, "scaled_global_grad_norm = combine_grad_norm_groups(norm_groups)"),),
)


def reproduce(lab: Lab) -> str:
    from .._nonfinite import reported_norm

    return reported_norm(lab, 3)
