"""ZeRO-1/2: gradients of MoE experts are ep_size times too large.

Why: with expert parallelism (`ep_size` > 1) an expert's tokens come from `ep_size` ranks, so its gradient is already a
    sum over these ranks. Through 0.15.3 it is divided by the number of ranks that hold a copy of the expert, not by the
    number of all data-parallel ranks, as everything else is: it counts `ep_size` times as much as the rest of the
    model. The gradient norm is wrong too, and with clipping all updates. Nothing fails.
How: as in 0.15.4 and later, the whole bucket is divided by the number of data-parallel ranks. With `ep_size` 1 both
    numbers are the same.
Changes: the experts' gradients, the norm and, with clipping, all updates. Adam hardly notices a constant factor; with
    SGD the experts' learning rate was ep_size times the one given. A checkpoint written without the patch can be
    resumed; the experts move less than they should until Adam's moments have decayed.
Workaround: Jobs keep all experts on each rank (`ep_size` 1). You can keep it. Hooks that divide experts' gradients by
    `ep_size`, and a lower learning rate for experts, must be removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_AVERAGE = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.average_tensor"

PATCH = Patch(
    title="ZeRO-1/2 + MoE with ep_size > 1: experts' gradients are ep_size times too large",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.4"},
    changes=(
        Edit(
            _AVERAGE,
            replace="grad_reduc.data.div_(dist.get_world_size(group=process_group) / "
            "float(self.sequence_parallel_size))",
            code="pass",
            effect="experts' gradients were divided by the number of all ranks (unpatched: too large)",
            when="dist.get_world_size(group=process_group) != dist.get_world_size(group=self.dp_process_group)",
        ),
        Edit(
            _AVERAGE,
            after="if not self.ipg_bucket_has_moe_params:\n    ...",
            code="if self.ipg_bucket_has_moe_params:\n"
            "    tensor.div_(dist.get_world_size(group=self.dp_process_group) / float(self.sequence_parallel_size))",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6545": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6546": "fixed in 0.15.4",
    },
    fixed_in="0.15.4",
    fixed=(
        Source(
            _AVERAGE,
            "if self.ipg_bucket_has_moe_params:\n"
            "    process_group = self.expert_dp_process_group[param.group_name]"
            " if is_moe_param(param) else self.dp_process_group",
        ),
    ),
    ranks=2,
    config=lambda job: job.experts is True and job.stage in (1, 2),
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _experts as experts

    forms = {f"ZeRO-{stage}": {"zero_optimization": {"stage": stage}} for stage in (1, 2)}
    return experts.compare(lab, 2, forms, "those of doubled gradients of the experts", scale=2.0)
