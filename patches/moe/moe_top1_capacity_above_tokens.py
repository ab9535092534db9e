"""MoE with k = 1: selected index k out of range if an expert's capacity exceeds the number of tokens.

Why: the gate keeps as many tokens per expert as its capacity, and selects that many of the tokens that it has. With a
    `capacity_factor` above the number of experts (`eval_capacity_factor` in evaluation) there are fewer; through 0.14.0
    also with drop_tokens=False on a rank that has fewer tokens than another sends to one expert.
How: at most all tokens are selected, as in 0.19.4 and later. The capacity, and with it the size of what ranks exchange,
    is unchanged.
Workaround: Scripts set both factors to at most the number of experts, which has room for all tokens. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATING = "deepspeed.moe.sharded_moe:top1gating"

PATCH = Patch(
    title="MoE with k = 1: RuntimeError, selected index k out of range: more capacity than tokens",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.4"},
    changes=(
        Edit(
            _GATING,
            replace="_top_idx(mask1_rand, capacity)",
            code="_top_idx(mask1_rand, capacity.clamp(max=logits.size(0)))",
            effect=RAN,  # the capacity can be on the device
        ),
    ),
    symptom=r"in top1gating[\s\S]*selected index k out of range|k not in range for dimension[\s\S]*in _top_idx",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5353": "fixed in 0.14.1, with drop_tokens=False only",
        "https://github.com/deepspeedai/DeepSpeed/pull/8155": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(
        Source(
            _GATING,
            "selection_capacity = min(capacity, torch.tensor(mask1.size(0)).to(capacity.device))",
        ),
    ),
    config=lambda job: job.experts is True,
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _capacity as capacity

    return capacity.compute(lab, k=1, error="index k out of range", capacity_factor=8.0, min_capacity=1)
