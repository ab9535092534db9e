"""ZeRO-1/2 with overlap_comm, 0.17.2 to 0.17.4: all buckets but the first are filled in the same buffer.

Why: with `overlap_comm` and `contiguous_gradients` the backward pass fills two buffers in turn, so that one can be
    reduced meanwhile. Clearing a reduced bucket also resets the number of its buffer to 0, which is then swapped: from
    the second bucket on it is always 1. A bucket's gradients overwrite the previous bucket's while these are being
    reduced, and are averaged in their place. Losses differ from run to run or become nan. A step that fills at most two
    buckets is not affected.
How: clearing a bucket keeps its number. As a full bucket causes the buckets of all dtypes to be reduced, the numbers of
    all are swapped. Reducing overlaps with filling the other buffer; upstream's fix waits instead (through 0.18.4).
Changes: the steps in which a gradient was overwritten; all others give the same numbers. A checkpoint written without
    the patch loads, but its weights were trained on such gradients.
Workaround: The config sets `"overlap_comm": false`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.zero.stage_1_and_2"
_ADD = f"{_MODULE}:DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads"

PATCH = Patch(
    title="ZeRO-1/2 + overlap_comm (0.17.2 to 0.17.4): wrong gradients or nan with more than two buckets",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.2,<0.17.5"},
    changes=(
        Edit(f"{_MODULE}:IPGBucket.clear", replace="self.index = 0", code="pass"),
        Edit(
            _ADD,
            replace="bucket.index = 1 - bucket.index",
            code="for each in self.ipg_buckets.values():\n    each.index = 1 - each.index",
            effect=RAN,  # whether the other buffer was still being reduced
            when="bucket.index == 1",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7371": "fixed in 0.17.5, without overlap",
        "https://github.com/deepspeedai/DeepSpeed/pull/7805": "fixed in 0.18.5, with overlap",
    },
    fixed_in="0.17.5",
    fixed=(Source(_ADD, "self.reduction_stream.wait_stream(get_accelerator().current_stream())"),),
    config=lambda job: job.overlaps_buckets,
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    lab.late_streams()
    from ._overlap import MATRIX, WIDTH, one_step

    # a bucket for each layer, filled from the last layer to the first
    step = one_step(lab, [MATRIX] * 4, reduce_bucket_size=WIDTH * WIDTH)
    third = {(2, rank): 1 for rank in range(2)}
    return step.compare(2, {"those of the third bucket's gradient in place of the second one's": third})
