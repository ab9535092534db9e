"""FPDT_LogitsLoss: labels of -100 have no part in the loss, but a gradient.

Why: the loss of such a label is 0, as `nll_loss` ignores it. The backward pass does not: the logits of that position
    get the gradient of a label 100 before the end of the vocabulary, and the head and the layers below learn from
    prompts and padding. With a vocabulary of fewer than 100 words it raises IndexError.
How: the gradient of such positions is 0, as with `cross_entropy`. The others are the same, bit by bit.
    ulysses_cross_entropy_ignored does so for the loss without FPDT.
Changes: jobs that mask labels with -100. A checkpoint that was written without the patch loads, and training goes on
    with the loss's own gradient.
Workaround: Scripts multiply the losses by a mask before they sum them up, or replace the labels as well. Both can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.sequence.fpdt_layer:FPDT_LogitsLoss.backward"

PATCH = Patch(
    title="FPDT_LogitsLoss: labels of -100 have a gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.1"},
    changes=(
        Edit(
            _BACKWARD,
            after="grad_output = grad_output[rank * local_seq_len:(rank + 1) * local_seq_len]",
            code="grad_output = grad_output.masked_fill(labels == -100, 0)\nlabels = labels.clamp(min=0)",
            effect=RAN,  # the labels are on the device
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/6462": "introduced in 0.16.1"},
    present=(Source(_BACKWARD, "grad_2d[arange_1d, labels[st:ed, :].reshape(-1).contiguous()] -= 1"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from ._losses import compared, fpdt

    found, right, ignored = fpdt(lab, ignored=True)
    if bool(found[1][ignored].any()) and torch.allclose(found[1][~ignored], right[1][~ignored], atol=1e-5):
        largest = float(found[1][ignored].abs().max())
        raise BugPresent(f"hidden states with a label of -100 have gradients of up to {largest:.2g}; others are right")
    return compared(found, right)
