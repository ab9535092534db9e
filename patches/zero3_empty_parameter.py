"""ZeRO-3 with a parameter of no elements: AssertionError in forward, 'status': 'NOT_AVAILABLE', 'ds_numel': 0.

Why: whether a module's parameters have to be gathered is judged by the number of elements that are missing. Where only
    parameters without elements are, that is 0: they are not gathered, and the check after it finds them missing. Such
    parameters come from layers of width 0 and from placeholders; plain PyTorch trains them.
How: parameters are gathered where any is missing, with elements or without.
Upstream: not fixed in 0.19.8; https://github.com/deepspeedai/DeepSpeed/pull/8375, open. Up to 0.18.5 the same lines are
    in another function: zero3_empty_parameter_before_0186.
Retire: when https://github.com/deepspeedai/DeepSpeed/pull/8375 is in a release, and those before it are no longer
    supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FETCH = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator._fetch_sub_module_impl"

PATCH = Patch(
    title="ZeRO-3: AssertionError in _fetch_sub_module_impl for a parameter without elements",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.6,<=0.19.8"},
    changes=(
        Edit(
            _FETCH,
            replace="fetch_numel > 0",
            code="fetch_numel > 0 or any(p.ds_status == ZeroParamStatus.NOT_AVAILABLE for p in params_to_fetch)",
        ),
    ),
    symptom=r"fetch_sub_module[\s\S]*AssertionError: \{[^\n]*'status': 'NOT_AVAILABLE'[^\n]*'ds_numel': 0\b",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/8375",),
    fixed_in=None,
)


def reproduce(lab: Lab) -> str:
    assert lab.torch is not None  # with the device usable, before the next line imports it
    from dsfix.lab.empty_parameter import reproduce as train_with_an_empty_parameter

    return train_with_an_empty_parameter(lab)
