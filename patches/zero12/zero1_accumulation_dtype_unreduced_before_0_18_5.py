"""ZeRO-1 with gradients accumulated in another dtype, through 0.18.4: gradients are not averaged across ranks.

Why: with `data_types.grad_accum_dtype: "fp32"`, ZeRO-1 accumulates the gradients of fp16 micro-batches, and of bf16
    ones with optimizer offload (without it bf16 uses BF16_Optimizer), in separate tensors. It reduces a copy of such a
    tensor in the model's dtype, and the average stays in the copy: each rank steps its partition of the weights with
    its own gradients. Nothing fails; more ranks do not reduce gradient noise.
    With `overlap_comm` the copy is made before the last micro-batch's gradient is added (0.13.0 to 0.16.4) and, without
    gradient accumulation, of nothing: AttributeError. One rank has nothing to average, and is otherwise correct.
How: with more than one rank the copy replaces its source before it is reduced; before that, the gradient that the hook
    is called for is added.
Changes: each step uses the gradients of all ranks. They are communicated in the model's dtype, as before. A checkpoint
    written without the patch loads.
Workaround: None in the script; ZeRO-2, or accumulation in the parameters' dtype, helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

from ._accumulation_dtype import on_several_ranks

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_GRADIENT = f"{_OPTIMIZER}.get_gradient_for_reduction"


def accumulate(optimizer: Any, param: Any) -> None:
    """Add the gradient that a hook is called for to those of earlier micro-batches, unless that is already done."""
    if not optimizer.use_grad_accum_attribute or param.grad is None:
        return
    gradient = param.grad.to(optimizer.gradient_accumulation_dtype)
    if param.grad_accum is None:
        took_effect(__name__, "gradients were accumulated before they were reduced (unpatched: there are none)")
        param.grad_accum = gradient
    else:
        param.grad_accum.add_(gradient.view(param.grad_accum.shape))
    param.grad = None


PATCH = Patch(
    title="ZeRO-1 + data_types.grad_accum_dtype (before 0.18.5): gradients are not averaged across ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.18.5"},
    changes=(
        Edit(
            _GRADIENT,
            before="return param.grad_accum.to(self.dtype) if param.grad_accum is not None else None",
            code="if param.grad_accum is not None and dist.get_world_size(group=self.dp_process_group) > 1:\n"
            "    param.grad_accum = param.grad_accum.to(self.dtype)",
            effect="gradients were averaged across ranks (unpatched: each rank uses its own)",
            when="param.grad_accum is not None and param.grad_accum.dtype != self.dtype"
            " and dist.get_world_size(group=self.dp_process_group) > 1",
        ),
        Edit(
            f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
            before="grad_reduc = self.get_gradient_for_reduction(param)",
            code="accumulate(self, param)",
            uses=(accumulate,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/2847": "introduced",
    },
    continued_by="zero1_accumulation_dtype_unreduced",
    present=(Source(f"{_OPTIMIZER}.independent_gradient_partition_epilogue", "self.zero_grad(set_to_none=True)"),),
    ranks=2,
    config=on_several_ranks,
)


def reproduce(lab: Lab) -> str:
    from ._accumulation_dtype import average

    return average(lab)
