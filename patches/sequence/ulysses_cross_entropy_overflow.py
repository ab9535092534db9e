"""vocab_sequence_parallel_cross_entropy: the loss is inf where a label's probability is too small for the dtype.

Why: the loss is `softmax(logits).log()`. A probability below the smallest number of the dtype is 0, and its logarithm
    -inf: in fp32 where a label's logit is 104 below the largest, in fp16 17. A denormal number has few digits. The
    gradient is correct, so training continues unless the script checks the loss.
How: the loss is `log_softmax(logits)`, as in `cross_entropy`. Other losses are the same within rounding, and gradients
    bit by bit.
Changes: the loss that a job logs, and by which it may skip or end steps. No checkpoint changes.
Workaround: Scripts replace a loss that is not finite, or compute it by `cross_entropy` where it is logged.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="vocab_sequence_parallel_cross_entropy: the loss is inf where a label is very unlikely",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.0,<0.19.8"},
    changes=(
        Edit(
            "deepspeed.sequence.cross_entropy:_VocabSequenceParallelCrossEntropy.forward",
            replace="softmax.log()",
            code="torch.nn.functional.log_softmax(vocab_seq_parallel_logits, dim=-1)",
            effect=RAN,  # the logits are on the device
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5774": "introduced in 0.15.0"},
    fixed_in="0.19.8",
    fixed=(
        Source(
            "deepspeed.sequence.cross_entropy:_VocabParallelCrossEntropy.forward",
            "torch.log(global_sum_exp) + global_max - target_logits",
        ),
    ),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from ._losses import compared, ulysses

    found, right, _ = ulysses(lab, largest=600)
    if bool(found[0].isinf().any()) and torch.allclose(found[1], right[1], atol=1e-6):
        raise BugPresent(f"{int(found[0].isinf().sum())} of {found[0].numel()} losses are inf; gradients are right")
    return compared(found, right)
