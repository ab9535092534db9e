"""ZeRO-3 with optimizer offload: the gradient norm and clipping ignore gradients set by `safe_set_local_grad`.

Why: with offload the norm of each gradient is computed and stored when it is reduced. The step uses what
    `safe_set_local_grad` sets, but the norm is still the norm of the previous gradient: the reported norm is wrong, and
    gradients are clipped too little or too much. Without offload the norm is computed in the step. Nothing fails.
How: setting a gradient also updates the stored norm. Only functions that scripts call are changed; there is no
    collective.
Changes: jobs that call `safe_set_local_grad` under ZeRO-3 with offload_optimizer: the reported norm and, with
    gradient_clipping, the updates. A checkpoint written without the patch can be resumed.
Workaround: Scripts set `engine.optimizer.norm_for_param_grads` of the parameter as well. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity, Source

from .._shared import count_in_norm

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SET = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.set_local_grad_for_param"


PATCH = Patch(
    title="ZeRO-3 + offload: the gradient norm and clipping ignore gradients set by safe_set_local_grad",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.3,<0.17.0"},
    changes=(
        Edit(
            _SET,
            after="fp32_grad.data.copy_(value.flatten().data)",
            code="count_in_norm(self, param, value)",
            uses=(count_in_norm,),
            effect=RAN,  # whether the norm is another, or the script renews it itself
            when="self.offload_optimizer and type(self).__name__ == 'DeepSpeedZeroOptimizer_Stage3'"
            " and not getattr(self, 'zenflow', False)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7292": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7302": "fixed in 0.17.0",
    },
    fixed_in="0.17.0",
    fixed=(Source(_SET, "self.norm_for_param_grads[self.get_param_id(param)] = self._constant_buffered_norm2(value)"),),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from ._set_gradients import clipped

    if not hasattr(lab.deepspeed.utils, "safe_set_local_grad"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no safe_set_local_grad")
    return clipped(lab, "local")
