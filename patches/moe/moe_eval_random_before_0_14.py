"""MoE, through 0.13.5: an evaluation chooses experts, or the tokens that are dropped, by chance.

Why: as in moe_eval_random; noise is always added to the logits by which the second expert of k = 2 is chosen.
How: as there. As these releases have no option for the noise, the logits of an evaluation are marked.
Changes: evaluations of models with k = 2, and of those with k = 1 that drop tokens: losses, outputs, and what a script
    decides by them. The training and checkpoints stay as they are.
Workaround: Scripts set `use_rts` to False, replace `gumbel_rsample` for the evaluation, or average several evaluations.
    All can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from .moe_eval_random import by_chance

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.moe.sharded_moe:TopKGate.forward"
_GATING = "deepspeed.moe.sharded_moe:top2gating"
_NOISE = "gumbel_rsample(logits.shape, device=logits.device)"
_NOISY = "logits_w_noise = logits + {}"


def of_training(noise: Any, logits: Any) -> Any:
    """The noise, 0 in an evaluation."""
    return noise.zero_() if hasattr(logits, "dsfix_evaluated") else noise


PATCH = Patch(
    title="MoE: evaluations of the same input differ, the second expert or the dropped tokens are chosen by chance",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.0"},
    changes=(
        Edit(
            _FORWARD,
            before="if self.k == 1:\n    ...\nelse:\n    ...",
            code="chance = by_chance(self, logits)\nif not chance:\n    logits.dsfix_evaluated = True",
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
            _GATING,
            replace=_NOISY.format(_NOISE),
            code=_NOISY.format(f"of_training({_NOISE}, logits)"),
            uses=(of_training,),
            effect="the second expert was chosen without noise in an evaluation",
            when="hasattr(logits, 'dsfix_evaluated')",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5156": "related: made the noise an option in 0.14.0"},
    continued_by="moe_eval_random",
    present=(Source(_FORWARD, "self.noisy_gate_policy if self.training else None"),),
    config=lambda job: job.experts is True,
)


def reproduce(lab: Lab) -> str:
    from ._evaluation import evaluate

    return evaluate(lab)
