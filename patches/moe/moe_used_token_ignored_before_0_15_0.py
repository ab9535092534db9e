"""MoE with k = 2: `used_token` is ignored: padding takes the experts' places, and counts in the auxiliary loss.

Why: `MoE.forward(hidden_states, used_token)` promises to route used tokens only, but the gate hands the mask to the
    routing of k = 1 alone. With k = 2 all tokens are routed: where tokens are dropped, padding takes the place of used
    ones, and the auxiliary loss balances it, too. Nothing fails.
How: the mask applies to both choices of a token, as with k = 1. Jobs that pass no mask are unchanged.
    A rank without a used token routes all as before, and so does a mask that is not [tokens]: its order is not known.
Changes: outputs and auxiliary losses of such layers; as with k = 1, the output for a token that is not used is zero. A
    checkpoint written without the patch can be resumed, with a jump in the loss.
Workaround: None
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Patch, Severity, Source

from ._used_tokens import EDITS, MODULE, compute

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="MoE with k = 2: used_token is ignored, padding is routed and counts in the auxiliary loss",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.0"},
    changes=EDITS,
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1310": "introduced"},
    continued_by="moe_used_token_ignored",
    present=(Source(f"{MODULE}:TopKGate.__init__", "k != 1 and k != 2"),),  # no k > 2
    config=lambda job: job.experts is True,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    return compute(lab, 2)
