"""zero_to_fp32 --safe_serialization in 0.16.0 to 0.19.6: "Some tensors share memory" for a model with tied weights.

Why: a tied weight is one tensor under two names, as of an embedding and the head. safetensors rejects such tensors. The
    checkpoint itself is complete, and converting it to PyTorch's format works.
How: as in zero_to_fp32_safetensors_tied.
Workaround: Checkpoints are converted to PyTorch's format, or scripts write the tensors of
    `get_fp32_state_dict_from_zero_checkpoint` themselves. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity

from ._tied import convert_tied, unshare

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="zero_to_fp32 --safe_serialization (0.16.0 to 0.19.6) fails with tied weights: Some tensors share memory",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.0,<0.19.7"},
    changes=(
        Edit(
            "deepspeed.utils.zero_to_fp32:convert_zero_checkpoint_to_fp32_state_dict",
            before="save_file(shard_state_dict, output_path, metadata={'format': 'pt'})",
            code="unshare(shard_state_dict, 'zero_to_fp32_safetensors_tied_before_0_19_7')",
            uses=(unshare,),
        ),
    ),
    symptom=r"zero_to_fp32\.py[\s\S]*RuntimeError:\s+Some tensors share memory",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6579": "introduced in 0.15.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8376": "proposed fix, open",
    },
    continued_by="zero_to_fp32_safetensors_tied",
)


def reproduce(lab: Lab) -> str:
    return convert_tied(lab)
