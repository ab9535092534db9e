"""ZeRO-1/2 with MoE on several ranks: gradients are divided by the number of ranks twice.

Why: a bucket that holds the gradient of an expert is divided parameter by parameter, because experts are averaged over
    different ranks than the rest of the model. From 0.12.4 to 0.13.0 the reduction then divides such a bucket once
    more, experts and neighbours alike: with N ranks these gradients are N times too small. Which parameters share a
    bucket with an expert depends on their order and on `reduce_bucket_size`; with its default, often all do.
How: the reduction does not divide again, as in 0.13.1 and later.
Changes: the gradients of all parameters in buckets with an expert become N times as large, and with them the norm. Adam
    hardly notices a common factor; SGD learned N times more slowly than asked. A checkpoint written without the patch
    can be resumed, best without the optimizer's states or with a warm-up: Adam's moments are too small at first.
Workaround: Scripts wrap `allreduce_and_scatter` and `allreduce_no_retain`, so that `divide` is False. You can keep it.
    A loss or learning rate multiplied by N must be restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_AVERAGE = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.average_tensor"
_TO_ALL = (
    "self.allreduce_and_scatter(buckets[bucket_key], numel_per_bucket=self.reduce_bucket_size, divide={}, "
    "process_group=bucket_key)"
)
_TO_ONE = (
    "self.allreduce_no_retain(buckets[bucket_key], numel_per_bucket=self.reduce_bucket_size, rank=dst, divide={}, "
    "process_group=process_group)"
)

PATCH = Patch(
    title="ZeRO-1/2 + MoE on N ranks: gradients are N times too small",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.4,<0.13.1"},
    changes=tuple(
        Edit(
            _AVERAGE,
            replace=call.format("self.ipg_bucket_has_moe_params"),
            code=call.format("False"),
            effect="gradients in a bucket with experts were divided by the number of ranks once, not twice",
            when="self.ipg_bucket_has_moe_params"
            f" and dist.get_world_size(group={group}) != self.sequence_parallel_size",
        )
        for call, group in ((_TO_ALL, "bucket_key"), (_TO_ONE, "process_group"))
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4695": "introduced in 0.12.4",
        "https://github.com/deepspeedai/DeepSpeed/pull/4957": "fixed in 0.13.1",
    },
    fixed_in="0.13.1",
    ranks=2,
    config=lambda job: job.experts is True and job.stage in (1, 2),
)

_AT_ONCE = "use_multi_rank_bucket_allreduce"  # an option since 0.12.4, on by default


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.deepspeed
    from deepspeed.runtime.zero import config as zero_config

    from . import _experts as experts

    forms: dict[str, Any] = {f"ZeRO-{stage}": {"zero_optimization": {"stage": stage}} for stage in (1, 2)}
    if _AT_ONCE in zero_config.DeepSpeedZeroConfig.__annotations__:
        forms["ZeRO-2, to the owner"] = {"zero_optimization": {"stage": 2, _AT_ONCE: False}}
    return experts.compare(lab, 1, forms, "those of halved gradients", share=0.5)
