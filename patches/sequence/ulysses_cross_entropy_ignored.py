"""vocab_sequence_parallel_cross_entropy: labels of -100 get a gradient although they are not part of the loss.

Why: the loss of such a label is 0, as `nll_loss` ignores it. The backward pass does not: the logits of that position
    get the gradient of a label 100 before the end of the vocabulary, and the model learns from prompts and padding.
    With a vocabulary of fewer than 100 words it raises IndexError.
How: the gradient of such positions is 0, as with `cross_entropy`. The others are the same, bit by bit.
Changes: jobs that mask labels with -100. A checkpoint written without the patch loads, and training continues with the
    loss's own gradient.
Workaround: Scripts multiply the losses by a mask before they sum them up, or replace the labels as well.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.sequence.cross_entropy:_VocabSequenceParallelCrossEntropy.backward"

PATCH = Patch(
    title="vocab_sequence_parallel_cross_entropy: labels of -100 get a gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.0,<0.19.8"},
    changes=(
        Edit(
            _BACKWARD,
            before="grad_input = softmax",
            code="grad_output_part = grad_output_part.masked_fill((target == -100).view_as(grad_output_part), 0)\n"
            "target = target.clamp(min=0)",
            effect=RAN,  # the labels are on the device
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5774": "introduced in 0.15.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/6882": "proposed fix, closed",
    },
    fixed_in="0.19.8",
    present=(Source(_BACKWARD, "grad_2d[arange_1d, target.view(-1)] -= 1"),),
    fixed=(Source("deepspeed.sequence.cross_entropy:_VocabParallelCrossEntropy.forward", "target != ignore_index"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from ._losses import compared, ulysses

    found, right, ignored = ulysses(lab, ignored=True)
    if bool(found[1][ignored].any()) and torch.allclose(found[1][~ignored], right[1][~ignored], atol=1e-6):
        largest = float(found[1][ignored].abs().max())
        raise BugPresent(f"labels of -100 have gradients of up to {largest:.2g}; the others are right")
    return compared(found, right)
