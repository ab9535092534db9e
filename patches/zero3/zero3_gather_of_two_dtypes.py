"""ZeRO-3: `GatheredParameters` and steps fail for parameters of two dtypes.

Why: adapters in fp32 on a model in bf16 are peft's default. `GatheredParameters`, and each step for the small
    parameters that stay gathered, give every parameter a buffer of the first one's dtype, which the backend rejects:
    "output tensor must have the same type as input tensor". A module that has parameters of two dtypes itself, or whose
    parameters are fetched ahead, also fails in its forward pass through 0.17.4, which is not covered.
How: each buffer has its own parameter's dtype.
Workaround: Scripts cast the adapters to the model's dtype (`autocast_adapter_dtype=False`). You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATHER = "deepspeed.runtime.zero.partition_parameters:Init._allgather_params_coalesced"

PATCH = Patch(
    title="ZeRO-3: parameters of two dtypes are not gathered (GatheredParameters, step; LoRA in fp32 on bf16)",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.3"},
    changes=(
        Edit(
            _GATHER,
            replace="param_list[0].ds_tensor.dtype",
            code="param_list[len(allgather_params)].ds_tensor.dtype",
            effect="parameters of several dtypes were gathered (unpatched: error)",
            when="param_list[len(allgather_params)].ds_tensor.dtype != param_list[0].ds_tensor.dtype",
        ),
    ),
    symptom=r"in _allgather_params_coalesced[\s\S]*(?:must have the same type|invalid tensor type)",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8060": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    fixed=(Source(_GATHER, "param.ds_tensor.dtype"),),
    ranks=2,
    config=lambda job: job.stage == 3,
)


def reproduce(lab: Lab) -> str:
    from ._two_dtypes import train

    return train(lab, ("must have the same type", "invalid tensor type"))
