"""MoE with k > 2: selected index k out of range if an expert's capacity exceeds the number of tokens.

Why: the gate keeps as many tokens per expert as its capacity, and selects that many of the tokens that it has. There
    are fewer if k times the `capacity_factor` (`eval_capacity_factor` in evaluation) exceeds the number of experts, or
    `min_capacity` (default 4) the number of tokens, as in a batch of one to three.
How: at most all tokens are selected, as in 0.19.4 and later. The capacity, and with it the size of what ranks exchange,
    is unchanged.
Workaround: Scripts set the factors to at most the number of experts divided by k, which has room for all tokens, and
    `min_capacity` to at most the number of tokens. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATING = "deepspeed.moe.sharded_moe:topkgating"
_DROP = "if drop_policy == 'probs':\n    ...\nelif drop_policy == 'position':\n    ...\nelse:\n    ..."

PATCH = Patch(
    title="MoE with k > 2: RuntimeError, selected index k out of range: more capacity than tokens",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.0,<0.19.4"},
    changes=(
        # around the statement: another patch edits it
        Edit(_GATING, before=_DROP, code="places, capacity = capacity, capacity.clamp(max=logits.size(0))", effect=RAN),
        Edit(_GATING, after=_DROP, code="capacity = places"),
    ),
    symptom=r"in topkgating[\s\S]*selected index k out of range",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5881": "introduced in 0.15.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/8155": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(
        Source(
            _GATING,
            "selection_capacity = min(capacity, torch.tensor(gates.size(0)).to(capacity.device))",
        ),
    ),
    config=lambda job: job.experts is True,
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _capacity as capacity

    return capacity.compute(lab, k=3, error="index k out of range", capacity_factor=8.0, min_capacity=1)
