"""ZeRO-3 with optimizer offload: the gradient norm and clipping ignore gradients set by `safe_set_full_grad`.

Why: with offload the norm of each gradient is computed and stored when it is reduced. The step uses what
    `safe_set_full_grad` sets, but the norm is still the norm of the previous gradient: the reported norm is wrong, and
    gradients are clipped too little or too much. Without offload the norm is computed in the step. Nothing fails.
How: setting a gradient also updates the stored norm. Only functions that scripts call are changed; there is no
    collective.
Changes: jobs that call `safe_set_full_grad` under ZeRO-3 with offload_optimizer: the reported norm and, with
    gradient_clipping, the updates. A checkpoint written without the patch can be resumed.
Workaround: Scripts set `engine.optimizer.norm_for_param_grads` of the parameter as well. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity, Source

from .._shared import count_in_norm

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SET = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.set_fp32_grad_for_param"


PATCH = Patch(
    title="ZeRO-3 + offload: the gradient norm and clipping ignore gradients set by safe_set_full_grad",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.3"},
    changes=(
        Edit(
            _SET,
            after="fp32_grad.data.copy_(value_partition.data)",
            code="count_in_norm(self, param, value_partition)",
            uses=(count_in_norm,),
            effect=RAN,  # whether the norm is another, or the script renews it itself
            when="self.offload_optimizer and type(self).__name__ == 'DeepSpeedZeroOptimizer_Stage3'"
            " and not getattr(self, 'zenflow', False)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7292": "reported for safe_set_local_grad",
        "https://github.com/deepspeedai/DeepSpeed/pull/7302": "related: fixed safe_set_local_grad in 0.17.0",
    },
    present=(
        Source(_SET, "value_partition = value.flatten().narrow(0, fp32_grad.numel() * my_rank, fp32_grad.numel())"),
    ),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from ._set_gradients import clipped

    if not hasattr(lab.deepspeed.utils, "safe_set_full_grad"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no safe_set_full_grad")
    return clipped(lab, "full")
