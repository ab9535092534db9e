"""Without ZeRO: gradients of MoE experts are ep_size times too large.

Why: with expert parallelism (`ep_size` > 1) an expert's tokens come from `ep_size` ranks, so its gradient is already a
    sum over these ranks. Through 0.14.0 it is divided by the number of ranks that hold a copy of the expert, not by the
    number of all data-parallel ranks, as everything else is: it counts `ep_size` times as much as the rest of the
    model. The gradient norm is wrong too, and with clipping all updates. Nothing fails.
How: as in 0.14.1 and later, they are divided by the number of data-parallel ranks: after the reduction, by what is
    missing. There is no additional collective. Nothing changes with `ep_size` 1, without averaging, with sequence
    parallelism, or in fp16 with gradient_clipping, where these releases clip by an average of the ranks' norms.
Changes: the experts' gradients, the norm and, with clipping, all updates (fp16: only without gradient_clipping). Adam
    hardly notices a constant factor; with SGD the experts' learning rate was ep_size times the one given. A checkpoint
    written without the patch can be resumed; the experts move less than they should until Adam's moments have decayed.
Workaround: Scripts reduce the experts' gradients in their own `_reduce_expert_gradients`. You can keep it. Code that
    divides these gradients, or their learning rate, by `ep_size` must be removed, as with 0.14.1: it cannot be
    distinguished from other scaling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REDUCE = "deepspeed.runtime.engine:DeepSpeedEngine._reduce_expert_gradients"


def divide_by_all_ranks(engine: Any, gradients: dict[str, Any]) -> None:
    """Divide the experts' gradients, averaged over the ranks with a copy, by the number of all ranks instead."""
    import torch
    from deepspeed import comm
    from deepspeed.utils import groups

    if engine.sequence_parallel_size != 1 or (engine.postscale_gradients() and not engine.gradient_average):
        return
    if engine.fp16_enabled() and engine.gradient_clipping() > 0.0:  # the norm is wrong in another way
        return
    ranks = comm.get_world_size(group=groups._get_data_parallel_group())
    for name, tensors in gradients.items():
        copies = groups._get_expert_data_parallel_world_size(name)
        if tensors and copies != ranks:
            took_effect(__name__, "experts' gradients were divided by %s (unpatched: too large)", ranks // copies)
            dense = [getattr(tensor, "orig_dense_tensor", tensor) for tensor in tensors]
            torch._foreach_mul_(dense, copies / ranks)


PATCH = Patch(
    title="MoE with ep_size > 1 without ZeRO: experts' gradients are ep_size times too large",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.1"},
    changes=(
        Edit(
            _REDUCE,
            after="for ep_name, expert_grads_group in expert_grads.items():\n    ...",
            code="divide_by_all_ranks(self, expert_grads)",
            uses=(divide_by_all_ranks,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5259": "fixed in 0.14.1"},
    fixed_in="0.14.1",
    fixed=(Source(_REDUCE, "dp_world_size = dist.get_world_size(groups._get_data_parallel_group())"),),
    ranks=2,
    config=lambda job: (
        job.experts is True and job.stage == 0 and not job.may_be("bf16") and not (job.may_be("fp16") and job.clips)
    ),
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _experts as experts

    forms = {"postscaled": {}, "prescaled": {"prescale_gradients": True}}
    return experts.compare(lab, 2, forms, "those of doubled gradients of the experts", scale=2.0)
