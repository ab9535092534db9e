"""FPDT_FFN with `add_bias=False`: the second bias gets no gradient and is not trained.

Why: with `add_bias=False`, FPDT_FFN returns the bias of the second layer, which the caller adds later. Its backward
    pass ignores the gradient of that output and returns zeros for the bias.
How: the bias gets this gradient.
Changes: the training of this bias. A checkpoint written without the patch has it as it was initialized or loaded; it
    loads, and the bias is trained from there.
Workaround: Scripts add the parameter itself, not the bias that is returned, or pass `add_bias=True`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from ._tiled import fpdt, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.sequence.fpdt_layer:FPDT_FFN.backward"

PATCH = Patch(
    title="FPDT_FFN with add_bias=False: the second bias is not trained",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.1"},
    changes=(
        Edit(
            _BACKWARD,
            replace="grad_b2.to(dtype)",
            code="(grad_b2 if add_bias else grad_bias).to(dtype)",
            effect=RAN,  # zeros if the caller does not use the bias
            when="not add_bias",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6462": "introduced in 0.16.1",
    },
    present=(Source(_BACKWARD, "if add_bias:\n    grad_b2.add_(grad_output[st:ed].sum(0).sum(0))"),),
)

_WIDTH, _LENGTH, _CHUNK = 16, 8, 4
_LEARNING_RATE, _STEPS = 0.1, 2


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    layer = fpdt(lab)

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, chunked: bool, trained: bool = True) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.up = torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, 2 * _WIDTH)
            self.down = torch.nn.Linear(2 * _WIDTH, _WIDTH)
            self.chunked, self.trained = chunked, trained

        def forward(self, x: Any, y: Any) -> Any:
            x, up, down = self.below(x), self.up, self.down
            if self.chunked:
                x, bias = layer.FPDT_FFN.apply(x * 1, up.weight, up.bias, down.weight, down.bias, False, _CHUNK)
            else:
                x = torch.nn.functional.gelu(up(x), approximate="tanh") @ down.weight.t()
                bias = down.bias if self.trained else down.bias.detach()
            return torch.nn.functional.mse_loss(x + bias, y)

    generator = torch.Generator().manual_seed(0)
    batches = [[torch.randn(_LENGTH, 1, _WIDTH, generator=generator) for _ in range(2)] for _ in range(_STEPS)]

    def plain(trained: bool) -> dict[str, Any]:
        model, steps = Model(False, trained), [[batch] for batch in batches]
        result: dict[str, Any] = reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters
        return result

    return reference.compare(
        train(lab, Model(True), batches, _LEARNING_RATE),
        plain(True),
        {"those of a bias that is not trained": plain(False)},
        after=f"after {_STEPS} steps",
    )
