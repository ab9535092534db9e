"""AutoTP: no fused attention weight is recognized; all are split in BLOOM's layout: wrong output of MPT and others.

Why: 0.13.2 compares names the wrong way round: it looks for the layer's whole description in each of the names that it
    knows, and never finds it. All fused weights are then divided in BLOOM's order, with one warning. The output of
    CodeGen, GLM, MPT, Baichuan, Qwen and BigCode models, and of others with all queries before all keys, is wrong.
How: the known names are looked for in the description, as in 0.13.5 and later. Layers that have BLOOM's order under
    another order's name are divided as without the patch: Persimmon's, Falcon's (own code), ChatGLM-6B's and BigCode's
    with `multi_query=False`. From 0.13.5 on their output is wrong, and the last ends with a shape error.
Changes: the output of such models under tensor parallelism without kernel injection. No checkpoint is concerned.
Workaround: Scripts wrap `prepare_tp_fused_qkvw` in `deepspeed.module_inject.auto_tp` to pass only the layer's name
    ("MptBlock"), or reverse the comparison in the installed file. You can keep it. A weight that the script itself has
    put in BLOOM's order must be left as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsfix.lab import Lab

_PREPARE = "deepspeed.module_inject.fusedqkv_utils:prepare_tp_fused_qkvw"


def recognized(names: Iterable[str], description: str) -> list[str]:
    """The names that stand for the order of a layer of that description."""
    found = [name for name in names if name in description]
    without = set()
    if "query_key_value" in description:
        without.add("DecoderLayer")
    if "(rotary_emb)" in description:
        without.add("GLMBlock")
    # with one head of keys and values for all queries the weight is narrower
    sizes = re.search(r"\(c_attn\): \w+\(in_features=(\d+), out_features=(\d+)", description)
    if sizes is not None and int(sizes[2]) == 3 * int(sizes[1]):
        without.add("GPTBigCodeBlock")
    return [name for name in found if name not in without]


PATCH = Patch(
    title="AutoTP: fused qkv weights of MPT, GLM, Qwen and others are split in BLOOM's layout; wrong output",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2,<0.13.5"},
    changes=(
        Edit(
            _PREPARE,
            replace="module_name_matches = [k for k in fused_type_dict.keys() if module_str in k]",
            code="module_name_matches = recognized(fused_type_dict, module_str)",
            uses=(recognized,),
            effect=RAN,
        ),
    ),
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
    from . import _autotp as autotp

    return autotp.compare_sharded(lab, autotp.MPT, parts=2, pieces=3, wrong="a weight split by halves")
