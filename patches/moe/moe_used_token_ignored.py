"""MoE with k >= 2: `used_token` is ignored: padding takes the experts' places, and counts in the auxiliary loss.

Why: `MoE.forward(hidden_states, used_token)` promises to route used tokens only, but the gate hands the mask to the
    routing of k = 1 alone. With k >= 2 all tokens are routed: where tokens are dropped, padding takes the place of used
    ones, and the auxiliary loss balances it, too. Nothing fails.
How: the mask applies to all choices of a token, as with k = 1. Jobs that pass no mask are unchanged.
    A rank without a used token routes all as before, and so does a mask that is not [tokens]: its order is not known.
Changes: outputs and auxiliary losses of such layers; as with k = 1, the output for a token that is not used is zero. A
    checkpoint written without the patch can be resumed, with a jump in the loss.
Workaround: None
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from ._used_tokens import EDITS, MODULE, compute, of_used

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATING = f"{MODULE}:topkgating"
_CHOSEN = "mask = torch.zeros_like(gates, dtype=torch.bool).scatter_(1, top_idx, 1)"

PATCH = Patch(
    title="MoE with k >= 2: used_token is ignored, padding is routed and counts in the auxiliary loss",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.0"},
    changes=(
        *EDITS,
        Edit(
            _GATING,
            after=_CHOSEN,
            code="mask, = of_used(logits, mask)",
            uses=(of_used,),
            effect=RAN,  # whether a token is not used
            when="hasattr(logits, 'dsfix_used')",
        ),
        # the most probable routes are kept
        Edit(_GATING, replace="topk_masked_gates", code="of_used(logits, topk_masked_gates)[0]"),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1310": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/5881": "related: k > 2, in 0.15.0",
    },
    present=(Source(_GATING, _CHOSEN),),
    config=lambda job: job.experts is True,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    return "; ".join(compute(lab, k) for k in (2, 3))
