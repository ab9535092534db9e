"""FPDT_LogitsLoss: labels of -100 get a gradient although they are not part of the loss.

Why: the loss of such a label is 0, as `nll_loss` ignores it. The backward pass does not: the logits of that position
    get the gradient of a label 100 before the end of the vocabulary, and the model learns from prompts and padding.
    With a vocabulary of fewer than 100 words it raises IndexError.
How: the gradient of such positions is 0, as with `cross_entropy`. The others are the same, bit by bit.
Changes: jobs that mask labels with -100. A checkpoint written without the patch loads, and training continues with the
    loss's own gradient.
Workaround: Scripts multiply the losses by a mask before summing them, or replace the labels as well. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from ._tiled import fpdt, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.sequence.fpdt_layer:FPDT_LogitsLoss.backward"

PATCH = Patch(
    title="FPDT_LogitsLoss: labels of -100 get a gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.1"},
    changes=(
        Edit(
            _BACKWARD,
            replace="grad_2d[arange_1d, labels[st:ed, :].reshape(-1).contiguous()] -= 1",
            code="grad_2d[arange_1d, labels[st:ed, :].reshape(-1).contiguous().clamp(min=0)] -= 1",
            effect=RAN,  # the labels are on the device
        ),
        Edit(
            _BACKWARD,
            replace="grad_output[:chunk_size, :].unsqueeze(dim=-1)",
            code="grad_output[:chunk_size, :].masked_fill(labels[st:ed, :] == -100, 0).unsqueeze(dim=-1)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6462": "introduced in 0.16.1",
    },
    present=(Source(_BACKWARD, "grad_2d[arange_1d, labels[st:ed, :].reshape(-1).contiguous()] -= 1"),),
)

_WIDTH, _WORDS, _LENGTH, _CHUNKS = 16, 120, 8, 2
_LEARNING_RATE, _STEPS = 0.5, 2


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    layer = fpdt(lab)

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, how: str) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.head = torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, _WORDS, bias=False)
            self.how = how

        def forward(self, x: Any, labels: Any) -> Any:
            x = self.below(x)
            if self.how == "chunked":
                group = torch.distributed.group.WORLD
                return layer.FPDT_LogitsLoss.apply(x, labels, self.head.weight, 0, 1, group, _CHUNKS).mean()
            of = labels.t().flatten()
            losses = torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), of % _WORDS, reduction="none")
            shown = losses * (of != -100)
            if self.how == "wrong":  # the gradient of all, the value of those that are shown
                shown = shown.detach() + losses - losses.detach()
            return shown.mean()

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(_WORDS, (_STEPS, 1, _LENGTH), generator=generator)
    labels[:, :, 1::3] = -100  # a label of -100 is that of the word 20 to the backward pass
    batches = [(torch.randn(_LENGTH, 1, _WIDTH, generator=generator), each) for each in labels]
    steps = [[batch] for batch in batches]
    right, wrong = (
        reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters
        for model in (Model("plain"), Model("wrong"))
    )

    return reference.compare(
        train(lab, Model("chunked"), batches, _LEARNING_RATE),
        right,
        {"those of a loss that has labels of -100": wrong},
        after=f"after {_STEPS} steps",
    )
