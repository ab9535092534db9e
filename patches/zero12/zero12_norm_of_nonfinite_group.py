"""ZeRO-1 and ZeRO-2: the gradient norm is not inf although a gradient is, and is clipped by.

Why: DeepSpeed's norm of a parameter group with a gradient that is inf or nan is -1. Combined with the other groups' it
    counts as 1: `get_global_grad_norm()` and the monitors report an ordinary norm (1.0 for one group), and clipping
    divides by it, while the weights of that group become inf or nan. From 0.13.2 to 0.16.5 it is nan (-1 with optimizer
    offload), and clipping makes all weights nan. Nothing fails. fp16 finds inf and nan earlier, and so does bf16 where
    `bf16.check_grad_overflow` is on (the default since 0.19.3).
How: the norm of such a group is inf, and so is that of all, as in 0.19.8. The step is made, as without the patch.
Changes: with clipping, the other groups' gradients become 0 in such a step, as by PyTorch's `clip_grad_norm_`; the
    group's own weights are lost either way. A checkpoint from before such a step is intact.
Workaround: Scripts leave out a micro-batch whose loss is not finite on some rank. That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from .._norms import infinite

if TYPE_CHECKING:
    from dsfix.lab import Lab

_NORM = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.scaled_global_norm"


PATCH = Patch(
    title="ZeRO-1/2: with an inf gradient the reported norm is finite or nan, and clipping divides by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _NORM,
            before="if self.has_moe_layers:\n    ...",
            code="norm_groups = infinite(norm_groups)",
            uses=(infinite,),
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5242": "related: nan",
        "https://github.com/deepspeedai/DeepSpeed/pull/7171": "related: -1 instead of nan since 0.16.6",
    },
    fixed_in="0.19.8",
    fixed=(Source(_NORM, "combine_grad_norm_groups(norm_groups, norm_type=norm_type)"),),
)


def reproduce(lab: Lab) -> str:
    from .._nonfinite import reported_norm

    return "; ".join(reported_norm(lab, stage) for stage in (1, 2))
