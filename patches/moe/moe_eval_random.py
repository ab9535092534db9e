"""MoE with k = 2: in evaluation the second expert is sampled.

Why: the gate adds noise to the logits by which it chooses the second expert: `top2_2nd_expert_sampling`, on by default.
    It is meant for training, but `eval()` does not turn it off, as it does the noise of `noisy_gate_policy`: losses and
    outputs of the same weights and the same input differ from one evaluation to the next. Nothing is logged.
How: in evaluation mode the second expert is the one with the second largest logit, as with the option off. The random
    numbers are still drawn, so that what follows an evaluation does not change. Not changed: with k = 1, `use_rts`
    drops random tokens, in evaluations too.
Changes: evaluations and inference of models with k = 2 and three or more experts: losses, outputs, and what a script
    decides by them; also training of a gate in evaluation mode. Training in training mode stays as it is. A checkpoint
    written without the patch can be resumed.
Workaround: Scripts set `top2_2nd_expert_sampling` to False, for the evaluation or altogether, or average several
    evaluations. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.moe.sharded_moe:TopKGate.forward"


def is_training(gate: Any, logits: Any) -> bool:
    """Whether the gate is in training mode; in evaluation mode the random numbers are drawn here, and are not used."""
    if not gate.training and gate.k == 2 and gate.top2_2nd_expert_sampling:
        from deepspeed.moe.sharded_moe import gumbel_rsample  # the script may have replaced it

        gumbel_rsample(logits.shape, device=logits.device)
    return bool(gate.training)


PATCH = Patch(
    title="MoE with k = 2: evaluation is not deterministic, because the second expert is sampled",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.0"},
    changes=(
        Edit(
            _FORWARD,
            before="if self.k == 1:\n    ...\nelse:\n    ...",
            code="draws = is_training(self, logits)",
            uses=(is_training,),
        ),
        Edit(
            _FORWARD,
            replace="self.top2_2nd_expert_sampling",
            code="self.top2_2nd_expert_sampling and draws",
            effect=RAN,  # whether another expert would have been drawn, only the device knows
            when="self.top2_2nd_expert_sampling and not draws",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8620": "proposed fix, open",
        "https://github.com/deepspeedai/DeepSpeed/pull/5156": "related: the option, in 0.14.0",
    },
    present=(Source(_FORWARD, "self.noisy_gate_policy if self.training else None"),),
    fixed=(
        Source(_FORWARD, "self.top2_2nd_expert_sampling and self.training"),
        Source(_FORWARD, "self.training and self.top2_2nd_expert_sampling"),
        Source(_FORWARD, "self.top2_2nd_expert_sampling if self.training else False"),
    ),
    config=lambda job: job.experts is True,
)


def reproduce(lab: Lab) -> str:
    from ._evaluation import evaluate

    return evaluate(lab)
