"""ZeRO-1 with gradients accumulated in another dtype: gradients are not averaged across ranks.

Why: with `data_types.grad_accum_dtype: "fp32"`, ZeRO-1 accumulates the gradients of fp16 micro-batches, and of bf16
    ones with optimizer offload (without it bf16 uses BF16_Optimizer), in separate tensors. It reduces a copy of such a
    tensor in the model's dtype, and the average stays in the copy: each rank steps its partition of the weights with
    its own gradients. Nothing fails; more ranks do not reduce gradient noise. One rank has nothing to average.
How: with more than one rank the copy takes the place of its source before it is reduced. Another backward pass of the
    same forward pass adds to the source, and the sum of all is reduced; with optimizer offload the last counts most.
Changes: each step uses the gradients of all ranks. They are communicated in the model's dtype, as before; 0.19.8
    communicates them in the accumulation dtype. A checkpoint written without the patch loads.
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


def reduce_copy(optimizer: Any, param: Any) -> None:
    """Put a copy in the model's dtype, which will be reduced in place, where the sum of this rank's gradients was."""
    from deepspeed import comm as dist

    total = param.grad_accum
    if total is None or dist.get_world_size(group=optimizer.dp_process_group) == 1:
        return
    own, number = getattr(total, "_dsfix_own", (None, None))
    if own is not None and number != optimizer.micro_step_id:  # an earlier backward pass has reduced it
        total = own
    if total.dtype != optimizer.dtype:
        took_effect(__name__, "gradients were averaged across ranks (unpatched: each rank uses its own)")
        param.grad_accum = total.to(optimizer.dtype)
        param.grad_accum._dsfix_own = (total, optimizer.micro_step_id)


def own_sum(total: Any) -> Any:
    """This rank's sum of gradients, to which another backward pass adds."""
    return getattr(total, "_dsfix_own", (total,))[0]


PATCH = Patch(
    title="ZeRO-1 + data_types.grad_accum_dtype: gradients are not averaged across ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.5,<0.19.8"},
    changes=(
        Edit(
            _GRADIENT,
            before="return param.grad_accum.to(self.dtype) if param.grad_accum is not None else None",
            code="reduce_copy(self, param)",
            uses=(reduce_copy,),
        ),
        Edit(
            f"{_OPTIMIZER}.reduce_ipg_grads",
            after="if self.contiguous_gradients and self.is_param_in_current_partition[param_id]:\n    ...",
            # the copy lies in the bucket's buffer, whose memory it would keep
            code="if self.use_grad_accum_attribute and not self.is_param_in_current_partition[param_id]:\n"
            "    param.grad_accum = own_sum(param.grad_accum)",
            uses=(own_sum,),
        ),
        Edit(
            f"{_OPTIMIZER}._fill_param_grad_accum_attribute",
            before="if param.grad_accum is None:\n    ...\nelse:\n    ...",
            code="param.grad_accum = own_sum(param.grad_accum)",
            uses=(own_sum,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/2847": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "related: several backward passes of a step",
    },
    fixed_in="0.19.8",
    present=(Source(f"{_OPTIMIZER}.independent_gradient_partition_epilogue", "self._clear_param_grad_only()"),),
    fixed=(Source(_GRADIENT, "return param.grad_accum if param.grad_accum is not None else None"),),
    ranks=2,
    config=on_several_ranks,
)


def reproduce(lab: Lab) -> str:
    from ._accumulation_dtype import average

    return average(lab)
