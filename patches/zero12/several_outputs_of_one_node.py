"""0.18.3: TypeError in _backward_prologue_per_tensor if the model returns several outputs of one chunk, split, unbind.

Why: 0.18.3 divides the gradients of the model's outputs by the number of accumulation steps, in a hook of each output.
    The outputs of one autograd node, which `chunk`, `split` and `unbind` return, share one hook; an output that the
    loss does not use has no gradient, and None is divided: "unsupported operand type(s) for /: 'NoneType' and 'int'".
How: None stays None.
Workaround: The model returns a clone of each of these outputs. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_DIVIDE = "deepspeed.runtime.engine:DeepSpeedEngine._backward_prologue_per_tensor"
_NONE = "if grad is None:\n    return grad"

PATCH = Patch(
    title="A model that returns several outputs of one chunk(), split() or unbind(): TypeError in the backward pass",
    severity=Severity.CRASH,
    affects={"deepspeed": "==0.18.3"},
    changes=(
        Edit(
            _DIVIDE,
            before="return grad / self.gradient_accumulation_steps()",
            code=_NONE,
            effect="an output without a gradient was skipped (unpatched: TypeError)",
            when="grad is None",
        ),
    ),
    symptom=r"in _backward_prologue_per_tensor[\s\S]*TypeError: unsupported operand type\(s\) for /: 'NoneType'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7708": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7725": "fixed in 0.18.4",
    },
    fixed_in="0.18.4",
    fixed=(
        Source(_DIVIDE, _NONE),
        Source(_DIVIDE, "grad is not None and self._scale_wrt_gas"),
        Source(_DIVIDE, "if grad is not None:\n    ..."),  # since 0.19.6
    ),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = lab.models.MLP(), torch.nn.Linear(1, 2)
            torch.nn.init.constant_(self.last.weight, 0.5)
            torch.nn.init.zeros_(self.last.bias)

        def forward(self, inputs: Any) -> Any:
            return self.last(self.inner(inputs)).chunk(2, dim=-1)

    inputs, targets = lab.models.regression_batch(rank=0, step=0)

    def gradient(model: Any, device: Any) -> Any:
        given = inputs.to(device).requires_grad_()
        # not loss.backward() or engine.backward(), where dict_output_double_scaling and its twin leave None alone
        loss = torch.nn.functional.mse_loss(model(given)[0], targets.to(device))
        return torch.autograd.grad(loss, given)[0].cpu()

    model = Model()
    right = gradient(model, "cpu")
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    if not hasattr(engine, "_backward_prologue_per_tensor"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no loss.backward()")
    try:
        given = gradient(engine, lab.device)
    except TypeError as error:
        if traceback.extract_tb(error.__traceback__)[-1].name == "_backward_prologue_per_tensor":
            raise BugPresent(f"in the backward pass: {error}") from error
        raise
    torch.testing.assert_close(given, right)
    return "the gradient of the inputs is that of plain PyTorch"
