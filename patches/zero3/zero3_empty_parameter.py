"""ZeRO-3 with an empty parameter: AssertionError in forward, 'status': 'NOT_AVAILABLE', 'ds_numel': 0.

Why: whether a module's parameters must be gathered is decided by the number of missing elements. Where only empty
    parameters are missing, that is 0: they are not gathered, and the check that follows finds them missing. Empty
    parameters come from layers of width 0 and from placeholders; plain PyTorch accepts them.
How: gathers parameters if any is missing, empty or not. Through 0.18.5 the same lines are in another function: see
    zero3_empty_parameter_before_0_18_6.
Workaround: Scripts make the placeholder a buffer, or give it an element. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FETCH = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator._fetch_sub_module_impl"

PATCH = Patch(
    title="ZeRO-3: AssertionError in _fetch_sub_module_impl for an empty parameter",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.6,<=0.19.8"},
    changes=(
        Edit(
            _FETCH,
            replace="fetch_numel > 0",
            code="fetch_numel > 0 or any(p.ds_status == ZeroParamStatus.NOT_AVAILABLE for p in params_to_fetch)",
            effect="an empty parameter was gathered (unpatched: AssertionError)",
            # another name than in `code`: equal generators on one line are compiled as one
            when="not fetch_numel and any(each.ds_status == ZeroParamStatus.NOT_AVAILABLE for each in params_to_fetch)",
        ),
    ),
    symptom=r"fetch_sub_module[\s\S]*AssertionError: \{[^\n]*'status': 'NOT_AVAILABLE'[^\n]*'ds_numel': 0\b",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8375": "related: proposed fix",
    },
    present=(
        Source(
            _FETCH,
            """
fetch_numel = sum(
    [p.partition_numel() for p in params_to_fetch if p.ds_status == ZeroParamStatus.NOT_AVAILABLE])
""",
        ),
        Source(_FETCH, "assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()"),
    ),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch  # makes the device usable before the next line imports torch
    from . import _empty_parameter as empty_parameter

    return empty_parameter.reproduce(lab)
