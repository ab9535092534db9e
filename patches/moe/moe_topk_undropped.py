"""MoE with k > 2 and drop_tokens=False: UnboundLocalError, locations.

Why: through 0.17.0 the gate for more than two experts determines the tokens' places in the experts' buffers only if it
    drops tokens. Without that the first forward pass fails.
How: the places are determined as in 0.17.1 and later.
Workaround: Scripts keep drop_tokens, with a `capacity_factor` and an `eval_capacity_factor` of the number of experts
    divided by k, which has room for all tokens. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATING = "deepspeed.moe.sharded_moe:topkgating"

PATCH = Patch(
    title="MoE with k > 2 and drop_tokens=False: UnboundLocalError, locations",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.0,<0.17.1"},
    changes=(
        Edit(
            _GATING,
            after="capacity = new_capacity",
            code="locations = torch.cumsum(mask, dim=0) - 1",
            effect="the tokens' places were determined (unpatched: UnboundLocalError, locations)",
        ),
    ),
    symptom=r"in topkgating[\s\S]*local variable 'locations'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5881": "introduced in 0.15.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7163": "fixed in 0.17.1",
    },
    fixed_in="0.17.1",
    fixed=(Source(_GATING, "capacity = new_capacity\nlocations = torch.cumsum(mask, dim=0) - 1"),),
    config=lambda job: job.experts is True,
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch
    from . import _capacity as capacity

    return capacity.compute(lab, k=3, error="local variable 'locations'", drop_tokens=False)
