"""ZeRO-1/2 with gradients sent in a dtype other than the parameters': KeyError at the first full bucket.

Why: 0.17.2 to 0.18.0 keep one bucket per communication dtype. When one is full, its fill level is logged, but looked up
    by the parameter's dtype. Where the two differ this is a KeyError: with `communication_data_type`, with
    `torch_autocast`, and with sequence parallelism, which sends gradients in fp32 by default. A model whose gradients
    all fit into one bucket is not affected.
How: the fill level of all buckets is logged, as everywhere else.
Workaround: The config sets `communication_data_type` to the dtype of the parameters. You can keep it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ADD = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads"
_BEFORE = 'self.report_ipg_memory_usage("In ipg_remove_grads before reduce_ipg_grads", param.numel(){})'
_AFTER = 'self.report_ipg_memory_usage("In ipg_remove_grads after reduce_ipg_grads", param.numel(){})'

PATCH = Patch(
    title="ZeRO-1/2: KeyError torch.float16 (or another dtype) in report_ipg_memory_usage at the first full bucket",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.2,<0.18.1"},
    changes=(
        Edit(
            _ADD,
            replace=_BEFORE.format(", param.dtype"),
            code=_BEFORE.format(""),
            effect="the fill level of all buckets was logged (unpatched: KeyError for the parameter's dtype)",
            when="param.dtype not in self.ipg_buckets",
        ),
        Edit(_ADD, replace=_AFTER.format(", param.dtype"), code=_AFTER.format("")),
    ),
    symptom=r"in report_ipg_memory_usage[\s\S]*KeyError: torch\.\w+",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7607": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7636": "fixed in 0.18.1",
    },
    fixed_in="0.18.1",
    # through 0.17.1 the call is the same as the fixed one, without buckets per dtype
    fixed=(Source(_ADD, _BEFORE.format("")),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from . import _small_bucket as small_bucket

    def is_bug(error: Exception, passed: Collection[str]) -> bool:
        return isinstance(error, KeyError) and error.args == (torch.float16,) and "report_ipg_memory_usage" in passed

    return small_bucket.train(lab, small_bucket.WIDTH, is_bug)  # room for the weight or for the bias
