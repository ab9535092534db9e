"""ZeRO-1/2 with overlap_comm: a bucket is filled again before its gradients are reduced.

Why: with `overlap_comm` and `contiguous_gradients` the backward pass copies gradients into two buckets in turn, and a
    separate stream reduces them. That stream waits for the copies, but nothing waits for the reduction: where it is
    slower than the backward pass, a third bucket's gradients overwrite the first one's, which are then averaged in
    their place. Losses differ from run to run or become nan. A step that fills at most two buckets is not affected.
How: the backward pass waits, on the device, for the previous bucket's reduction before it fills that bucket again. The
    reduction of one bucket still overlaps with filling the other.
Changes: the steps in which a gradient was overwritten; all others give the same numbers. A checkpoint written without
    the patch loads, but its weights were trained on such gradients.
Workaround: The config sets `"overlap_comm": false`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_AVERAGE = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.average_tensor"
_WAIT = "get_accelerator().current_stream().wait_stream(stream)"

PATCH = Patch(
    title="ZeRO-1/2 + overlap_comm (before 0.14.3): wrong gradients or nan with more than two buckets",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.3"},
    changes=(
        Edit(
            _AVERAGE,
            after="stream.wait_stream(get_accelerator().current_stream())",
            code=_WAIT,
            effect=RAN,  # whether the reduction was late
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5523": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5606": "fixed in 0.14.3",
    },
    fixed_in="0.14.3",
    fixed=(Source(_AVERAGE, _WAIT),),
    config=lambda job: (
        job.overlaps_buckets
        # without it, each reduction is waited for since 0.12.4
        and (
            job.release < Version("0.12.4")
            or job.get("zero_optimization", "use_multi_rank_bucket_allreduce") is not False
        )
    ),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    lab.late_streams()
    from ._overlap import MATRIX, WIDTH, one_step

    # a bucket for each layer, filled from the last layer to the first
    step = one_step(lab, [MATRIX] * 4, reduce_bucket_size=WIDTH * WIDTH)
    third = {(3, rank): 1 for rank in range(2)}
    return step.compare(3, {"those of the third bucket's gradient in place of the first one's": third})
