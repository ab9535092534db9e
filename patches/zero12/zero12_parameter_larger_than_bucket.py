"""ZeRO-1/2, a parameter larger than the bucket, gradients sent in another dtype: RuntimeError in the backward pass.

Why: a parameter with more elements than `reduce_bucket_size` is reduced without a bucket. Since 0.17.2 there is one
    bucket per communication dtype, but such a parameter is recorded under its own dtype. Where the two differ (see
    zero12_full_bucket_dtype for when) it is not found again, and its number of elements is read from the bucket, which
    is smaller: "start (0) + length (…) exceeds dimension size (…)". Through 0.18.0 the same job crashes earlier:
    zero12_full_bucket_dtype.
How: the parameter is recorded under the dtype in which its gradient is sent.
Workaround: The config sets `communication_data_type` to the dtype of the parameters. You can keep it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ADD = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads"

PATCH = Patch(
    title="ZeRO-1/2: RuntimeError for a parameter larger than the bucket when gradients are sent in another dtype",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.2,<0.18.2"},
    changes=(
        Edit(
            _ADD,
            replace="self.extra_large_param_to_reduce[param.dtype] = param",
            code="self.extra_large_param_to_reduce[self.get_param_comm_dtype(param)] = param",
            effect="a parameter larger than the bucket was reduced (unpatched: RuntimeError)",
            when="self.get_param_comm_dtype(param) != param.dtype",
        ),
    ),
    symptom=r"in reduce_ipg_grads[\s\S]*start \(0\) \+ length \(\d+\) exceeds dimension size",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7653": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7660": "fixed in 0.18.2",
    },
    fixed_in="0.18.2",
    fixed=(Source(_ADD, "self.extra_large_param_to_reduce[comm_dtype] = param"),),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from . import _small_bucket as small_bucket

    def is_bug(error: Exception, passed: Collection[str]) -> bool:
        return (
            isinstance(error, RuntimeError) and "exceeds dimension size" in str(error) and "reduce_ipg_grads" in passed
        )

    return small_bucket.train(lab, small_bucket.WIDTH // 2, is_bug)
