"""AutoTP, through 0.16.1: init_inference fails if a width is not a multiple of 64: split_with_sizes.

Why: `init_inference` gives each rank a multiple of 64, and no rank the rest: of a width of 200, two ranks get 128 and
    64. `Tensor.split` refuses sizes that do not add up. Affected are the width of an MLP (SigLIP's is 4304), the input
    of `lm_head` and `embed_out`, and any width that the number of heads does not divide.
How: the last rank also gets the rest, as in 0.19.6 and later. Widths that were divided before are divided as before.
Workaround: Scripts pad the MLP with zeros to a multiple of 64. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SIZE = "deepspeed.module_inject.tp_shard:get_shard_size"

PATCH = Patch(
    title="AutoTP (before 0.16.2): init_inference fails if a width is not a multiple of 64: split_with_sizes",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.13.0,<0.16.2"},
    changes=(
        Edit(
            _SIZE,
            replace="return (grain_size // mp_size + (1 if rank < (grain_size % mp_size) else 0)) * 64",
            code="return (grain_size // mp_size + (1 if rank < (grain_size % mp_size) else 0)) * 64"
            " + (total_size % 64 if rank == mp_size - 1 else 0)",
            effect="the last rank got what is left of a width (unpatched: RuntimeError, split_with_sizes)",
            when="rank == mp_size - 1 and total_size % 64",
        ),
    ),
    symptom=r"\.split\(get_shard_size_list\([\s\S]{0,600}split_with_sizes expects split_sizes to sum exactly to",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4697": "introduced in 0.13.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/8185": "fixed in 0.19.6",
    },
    continued_by="autotp_width_remainder",
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _autotp as autotp

    return autotp.compare_uneven(lab)
