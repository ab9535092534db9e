"""MoE: an evaluation chooses experts, or the tokens that are dropped, by chance.

Why: with k = 2 noise is added to the logits by which the second expert is chosen (`top2_2nd_expert_sampling`, on by
    default), and with k = 1 the tokens that an expert has no room for are chosen at random (`use_rts`, on by default).
    Both are meant for training, but `eval()` does not end them, as it ends the noise of `noisy_gate_policy`: each
    evaluation of the same input has another result.
How: in evaluation mode the second expert is the one with the largest logit, and the tokens are not chosen at random, as
    with both options off. The random numbers are drawn nevertheless, so that what follows an evaluation stays the same.
Changes: evaluations of models with k = 2, and of those with k = 1 that drop tokens: losses, outputs, and what a script
    decides by them. The training and checkpoints stay as they are.
Workaround: Scripts set `use_rts` or `top2_2nd_expert_sampling` to False, for the evaluation or altogether, or average
    several evaluations. All can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.moe.sharded_moe:TopKGate.forward"


def by_chance(gate: Any, logits: Any) -> bool:
    """Whether anything is chosen by chance; the random numbers are drawn in any case."""
    import torch

    if gate.training:
        return True
    if gate.use_rts if gate.k == 1 else gate.k == 2 and getattr(gate, "top2_2nd_expert_sampling", False):
        torch.rand(logits.shape, device=logits.device)
    return False


PATCH = Patch(
    title="MoE: evaluations of the same input differ, the second expert or the dropped tokens are chosen by chance",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.0"},
    changes=(
        Edit(
            _FORWARD,
            before="if self.k == 1:\n    ...\nelse:\n    ...",
            code="chance = by_chance(self, logits)",
            uses=(by_chance,),
        ),
        Edit(
            _FORWARD,
            replace="self.use_rts",
            code="self.use_rts and chance",
            effect=RAN,  # whether tokens are dropped, only the device knows
            when="self.use_rts and not chance",
        ),
        Edit(
            _FORWARD,
            replace="self.top2_2nd_expert_sampling",
            code="self.top2_2nd_expert_sampling and chance",
            effect="the second expert was chosen without noise in an evaluation",
            when="self.top2_2nd_expert_sampling and not chance",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5156": "related: the option top2_2nd_expert_sampling"},
    present=(Source(_FORWARD, "self.noisy_gate_policy if self.training else None"),),
    config=lambda job: job.experts is True,
)


def reproduce(lab: Lab) -> str:
    from ._evaluation import evaluate

    return evaluate(lab)
