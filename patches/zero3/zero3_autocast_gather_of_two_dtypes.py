"""ZeRO-3 with torch_autocast: AssertionError for a module with parameters of two dtypes.

Why: DeepSpeed's torch_autocast sends the parameters that a module needs in one dtype, and then asserts that they all
    have that one: "all params must have the same dtype". Adapters in fp32 on a model in bf16 (peft's default) have two.
    Through 0.17.5 torch_autocast takes a model in fp32 only.
How: the assertion is left out: what has been received is cast to each parameter's own dtype anyway.
Workaround: Scripts cast the adapters to the model's dtype (`autocast_adapter_dtype=False`). You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONVERT = "deepspeed.runtime.zero.partition_parameters:Init._convert_to_deepspeed_param"
_MESSAGE = "all params must have the same dtype"
_FP32 = "All parameters must be float32 for torch autocast"
_ASSERTION = f'assert all(p.dtype == dtype for p in params), "{_MESSAGE}"'

PATCH = Patch(
    title="ZeRO-3 + torch_autocast: AssertionError for a module with parameters of two dtypes (LoRA in fp32 on bf16)",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.6,<0.19.3"},
    changes=(
        Edit(
            _CONVERT,  # the assertion is in a function of this one
            replace=_ASSERTION,
            code="pass",
            effect="parameters of several dtypes were gathered (unpatched: AssertionError)",
            when="any(p.dtype != dtype for p in params)",
        ),
    ),
    symptom=_MESSAGE,
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8113": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    present=(
        Source(_CONVERT, _ASSERTION),
        Source(_CONVERT, "_all_gather_dtype(dtype_params[dtype], world_size, rank_in_group, ds_process_group, dtype)"),
    ),
    fixed=(
        Source(_CONVERT, "comm_dtypes = [get_allgather_dtype(p, p.ds_tensor) for p in params]"),
        Source(
            "deepspeed.runtime.torch_autocast:_validate_auto_cast_settings",
            f'assert all(p.dtype == torch.float32 for p in engine.parameters()), "{_FP32}"',
        ),
    ),
    ranks=2,
    config=lambda job: job.stage == 3 and job.on("torch_autocast") is True,
)


def reproduce(lab: Lab) -> str:
    from ._two_dtypes import train

    try:
        return train(lab, (_MESSAGE,), autocast=True)
    except AssertionError as error:
        if _FP32 in str(error):  # 0.17.2 to 0.17.5
            raise CannotTell("the release takes torch_autocast with parameters in fp32 only") from error
        raise
    except RuntimeError as error:
        if "expected there to be only one unique element" in str(error):  # through 0.17.1
            raise CannotTell("the release gathers only parameters of one dtype together") from error
        raise
