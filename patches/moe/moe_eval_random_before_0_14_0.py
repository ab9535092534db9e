"""MoE with k = 2, through 0.13.5: in evaluation the second expert is sampled.

Why: as in moe_eval_random; these releases have no option to turn the sampling off.
How: as there. The gate marks the logits of an evaluation, whose noise is 0.
Changes: evaluations and inference of models with k = 2 and three or more experts: losses, outputs, and what a script
    decides by them; also training of a gate in evaluation mode. Training in training mode stays as it is. A checkpoint
    written without the patch can be resumed.
Workaround: Scripts replace `gumbel_rsample` for the evaluation, or average several evaluations. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.moe.sharded_moe:TopKGate.forward"
_NOISE = "gumbel_rsample(logits.shape, device=logits.device)"
_NOISY = "logits_w_noise = logits + {}"


def of_training(noise: Any, logits: Any) -> Any:
    """The noise; zeros for the logits of an evaluation."""
    return noise.zero_() if getattr(logits, "dsfix_evaluated", False) else noise


PATCH = Patch(
    title="MoE with k = 2 (before 0.14.0): evaluation is not deterministic, because the second expert is sampled",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.0"},
    changes=(
        Edit(
            _FORWARD,
            after="logits = self.wg(input_fp32)",
            code="logits.dsfix_evaluated = not self.training",
        ),
        Edit(
            "deepspeed.moe.sharded_moe:top2gating",
            replace=_NOISY.format(_NOISE),
            code=_NOISY.format(f"of_training({_NOISE}, logits)"),
            uses=(of_training,),
            effect=RAN,  # whether another expert would have been drawn, only the device knows
            when="getattr(logits, 'dsfix_evaluated', False)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8620": "proposed fix for later releases, open",
        "https://github.com/deepspeedai/DeepSpeed/pull/5156": "related: the option, in 0.14.0",
    },
    continued_by="moe_eval_random",
    present=(Source(_FORWARD, "self.noisy_gate_policy if self.training else None"),),
    config=lambda job: job.experts is True,
)


def reproduce(lab: Lab) -> str:
    from ._evaluation import evaluate

    return evaluate(lab)
