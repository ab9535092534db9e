"""FPDT_LogitsLoss: the loss is inf where a label's logit is more than 104 below the largest.

Why: the loss is `softmax(logits).log()` in fp32. A probability below the smallest number of fp32 is 0, and its
    logarithm -inf. The gradient is right, so that training goes on unless the script looks at the loss.
How: the loss is `log_softmax(logits)`, as in `cross_entropy`. Other losses are the same within rounding, and gradients
    bit by bit. ulysses_cross_entropy_overflow does so for the loss without FPDT.
Changes: the loss that a job logs, and by which it may skip or end steps. Checkpoints stay as they are.
Workaround: Scripts replace a loss that is not finite, or compute it by `cross_entropy` where it is logged. Both can
    stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.sequence.fpdt_layer:FPDT_LogitsLoss.forward"

PATCH = Patch(
    title="FPDT_LogitsLoss: the loss is inf where a label is very unlikely",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.1"},
    changes=(
        Edit(
            _FORWARD,
            replace="softmax.log()",
            code="torch.nn.functional.log_softmax(logits_chunk, dim=-1)",
            effect=RAN,  # the logits are on the device
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/6462": "introduced in 0.16.1"},
    present=(Source(_FORWARD, "softmax = torch.nn.functional.softmax(logits_chunk, dim=-1)"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from ._losses import compared, fpdt

    found, right, _ = fpdt(lab, largest=600)
    if bool(found[0].isinf().any()) and torch.allclose(found[1], right[1], rtol=1e-3, atol=1e-3):
        raise BugPresent(f"{int(found[0].isinf().sum())} of {found[0].numel()} losses are inf; gradients are right")
    return compared(found, right)
