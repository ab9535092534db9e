"""AutoTP of Falcon: the fused attention weight is split in another model's layout; wrong output.

Why: `init_inference` with tensor parallelism looks up the order of a fused weight by the names of the layer's classes.
    "DecoderLayer", with all queries, then all keys, then all values, was added in 0.12.6, and is part of Falcon's name;
    an entry for Falcon was added in 0.13.0, but "DecoderLayer" comes first. Falcon's weight has the queries, the key
    and the value of one group of heads after another. Each rank computes with rows of other groups; no error shows it,
    unless a third of the rows cannot be divided by the number of ranks.
How: a layer with FalconDecoderLayer in its name is divided by groups, as through 0.12.5 and since 0.13.2. Other layers
    are looked up as before. Falcon-7B, whose heads share one key and value, fits no order, before and after.
Changes: the output of Falcon models under tensor parallelism without kernel injection. No checkpoint is concerned.
Workaround: Scripts wrap `prepare_tp_fused_qkvw` in `deepspeed.module_inject.auto_tp` to pass "BloomBlock" as the layer,
    or move Falcon's name up in the installed file. You can keep it. A weight that the script itself has put in the
    other order must be left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PREPARE = "deepspeed.module_inject.fusedqkv_utils:prepare_tp_fused_qkvw"

PATCH = Patch(
    title="AutoTP of Falcon: the fused qkv weight is split in GLM's layout; wrong output",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.6,<0.13.2"},
    changes=(
        Edit(
            _PREPARE,
            before="for module_name, fused_type in fused_type_dict.items():\n    ...",
            code='if "FalconDecoderLayer" in module_str:\n    return _bloom_type_transpose(src, mp_size)',
            effect="a fused weight was split in Falcon's layout (unpatched: in GLM's)",
            when='"FalconDecoderLayer" in module_str',
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4721": "introduced in 0.12.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/4895": "related: the entry for Falcon, which is never reached",
        "https://github.com/deepspeedai/DeepSpeed/pull/5007": "fixed in 0.13.2",
    },
    fixed_in="0.13.2",
    present=(Source(_PREPARE, '"DecoderLayer"'),),
    fixed=(Source(_PREPARE, "max(module_name_matches, key=len)"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _autotp as autotp

    return autotp.compare_sharded(lab, autotp.FALCON, parts=3, pieces=2, wrong="a weight split by thirds")
