"""ZeRO-1/2 with overlap_comm: the gradient of a parameter larger than the bucket is freed while it is being reduced.

Why: such a gradient is reduced in place on `overlap_comm`'s reduction stream, and freed by the host right after the
    reduction was enqueued. PyTorch does not know of that stream, so the backward pass may write its next gradient there
    before the first one is averaged: nan, or losses that differ from run to run. From 0.17.5 to 0.18.4 the backward
    pass waits for each reduction; 0.19.0 and 0.19.8 tell PyTorch in some cases. Through 0.12.3 only jobs with another
    `communication_data_type`, or with optimizer offload, are affected.
How: PyTorch is told (`record_stream`) that the reduction stream uses the gradient, so its memory is not reused before
    that stream is done. No stream waits; the gradient's memory is free somewhat later. ZenFlow has its own method,
    which is not changed.
Changes: the steps in which a gradient was overwritten; all others give the same numbers. A checkpoint written without
    the patch loads, but its weights were trained on such gradients.
Workaround: The config sets `"overlap_comm": false`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def keep_until_reduced(optimizer: Any, gradient: Any) -> None:
    """Let a gradient that is no part of a bucket keep its memory until the reduction stream has used it."""
    if gradient.numel() <= optimizer.reduce_bucket_size or optimizer.reduction_stream is None:
        return
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    # through 0.13.1 one question answers this as well
    ordered = getattr(accelerator, "resolves_data_dependency", accelerator.is_synchronized_device)
    if not ordered():
        ran(__name__)
        gradient.record_stream(optimizer.reduction_stream)


def _meets(job: Job) -> bool:
    """Not with the default bucket, which few models have a larger parameter than; "auto" becomes hidden size ** 2."""
    size = job.get("zero_optimization", "reduce_bucket_size")
    if size == "auto":
        return job.overlaps_buckets and not job.plain
    return job.overlaps_buckets and isinstance(size, (int, float)) and size < 5e8


PATCH = Patch(
    title="ZeRO-1/2 + overlap_comm: nan or wrong gradients with a parameter larger than reduce_bucket_size",
    severity=Severity.WRONG_RESULT,
    # those left out wait for each reduction
    affects={"deepspeed": ">=0.12.0,!=0.17.5,!=0.17.6,!=0.18.0,!=0.18.1,!=0.18.2,!=0.18.3,!=0.18.4"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.average_tensor",
            after="stream = self.reduction_stream",
            code="keep_until_reduced(self, tensor)",
            uses=(keep_until_reduced,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5347": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7371": "hidden from 0.17.5 to 0.18.4, without overlap",
        "https://github.com/deepspeedai/DeepSpeed/pull/7805": "shows again in 0.18.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7965": "fixed in part in 0.19.0",
    },
    present=(Source(f"{_OPTIMIZER}.reduce_ipg_grads", "self.clear_grad_attribute(param)"),),
    fixed=(
        Source(
            f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
            "self.reduction_stream.wait_stream(get_accelerator().current_stream())",
        ),
    ),
    config=_meets,
    ranks=3,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(3)
    lab.late_streams()
    from ._overlap import MATRIX, VECTOR, WIDTH, one_step

    # The ranks 0 and 1 share the first matrix, 1 and 2 the second one, whose gradient is freed before the first one's
    # is computed: through 0.18.9 by all ranks, since then by rank 0 alone. Through 0.12.3 only fp16 shows it.
    shapes = [VECTOR, MATRIX, VECTOR, MATRIX, VECTOR]
    step = one_step(lab, shapes, reduce_bucket_size=WIDTH * WIDTH - 1, communication_data_type="fp16")
    instead = "those of the next gradient in place of the freed one on"
    wrong = {f"{instead} rank 0": {(3, 0): 1}, f"{instead} all ranks": {(3, rank): 1 for rank in range(3)}}
    return step.compare(3, wrong, within=2e-3)
