"""AutoTP: no fused attention weight is recognized, all are divided in BLOOM's order: wrong output of MPT and others.

Why: 0.13.2 compares names the wrong way round: it looks for the layer's whole description in each of the names that it
    knows, and never finds it. All fused weights are then divided in BLOOM's order, with one warning. The output of
    CodeGen, GLM, MPT, Baichuan, Qwen and BigCode models, and of others with all queries before all keys, is wrong.
How: the known names are looked for in the description, as since 0.13.5.
    A "DecoderLayer", the name of Baichuan's layer, stands for the order of others. Persimmon's layer and that of
    Falcon's own code have that name, too, and BLOOM's order: where such a layer has `query_key_value`, which Baichuan's
    lacks, its weight is divided as without the patch. From 0.13.5 on it is divided in the wrong order.
Changes: the output of such models under tensor parallelism without kernel injection. No checkpoint is concerned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PREPARE = "deepspeed.module_inject.fusedqkv_utils:prepare_tp_fused_qkvw"

PATCH = Patch(
    title="AutoTP: all fused qkv weights are split as BLOOM's, the output of MPT, GLM, Qwen and others is wrong",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2,<0.13.5"},
    changes=(
        Edit(
            _PREPARE,
            replace="module_str in k",
            code='k in module_str and (k != "DecoderLayer" or "query_key_value" not in module_str)',
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5007": "introduced in 0.13.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/5217": "fixed in 0.13.5",
    },
    fixed_in="0.13.5",
    fixed=(Source(_PREPARE, "[k for k in fused_type_dict.keys() if k in module_str]"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from dsfix.lab import autotp

    return autotp.compare_sharded(lab, autotp.MPT, parts=2, pieces=3, wrong="a weight split by halves")
