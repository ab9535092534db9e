"""bf16 without ZeRO: `engine.backward(loss, retain_graph=True)` ignores retain_graph.

Why: two losses of one forward pass, each with its own `engine.backward`, the first with `retain_graph=True`. In bf16
    without ZeRO the engine does not pass `retain_graph` on, as it does in fp16, in fp32 and with ZeRO; the second
    backward pass fails with "Trying to backward through the graph a second time".
How: passes it on. BF16_Optimizer adds the gradients of each pass in fp32.
Workaround: Scripts add up the losses and call `backward` once. You can keep it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_PASSED_ON = "if self.bfloat16_enabled():\n    self.optimizer.backward(loss, retain_graph=retain_graph)\nelse:\n    ..."
_MESSAGE = "Trying to backward through the graph a second time"

PATCH = Patch(
    title="bf16 without ZeRO: backward(loss, retain_graph=True): Trying to backward through the graph a second time",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.16.5"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            replace="self.optimizer.backward(loss)",
            # `loss=` distinguishes it from the calls for other precisions
            code="self.optimizer.backward(loss=loss, retain_graph=retain_graph)",
            effect=RAN,  # whether a second backward pass comes, nothing shows yet
            when="retain_graph",
        ),
    ),
    symptom=rf"self\.optimizer\.backward\(loss\)\n[\s\S]*bf16_optimizer\.py[\s\S]*{_MESSAGE}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1801": "introduced in 0.6.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7018": "fixed in 0.16.5",
    },
    fixed_in="0.16.5",
    # in 0.16.5, and fixed by hand
    fixed=tuple(Source(f"{_ENGINE}.{name}", _PASSED_ON) for name in ("_do_optimizer_backward", "backward")),
)

_LEARNING_RATE = 0.1
_LOSSES = 2
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from .. import _half as half

    steps = []
    for step in range(_STEPS):
        inputs, _ = models.regression_batch(rank=0, step=step)
        steps.append([(inputs, models.regression_batch(rank=i + 1, step=step)[1]) for i in range(_LOSSES)])
    # half.train averages the losses: their sum is their mean at a higher learning rate
    optimizer = functools.partial(torch.optim.SGD, lr=_LEARNING_RATE * _LOSSES)
    # BF16_Optimizer adds the gradients of both in fp32; since 0.17.6 bf16 without ZeRO adds them in bf16
    sums = (torch.float32, torch.bfloat16)
    expected = [half.train(models.MLP(), torch.bfloat16, steps, optimizer, accumulation=dtype) for dtype in sums]

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",  # bf16 by default, which rounds
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for micro_batches in steps:
        outputs = engine(micro_batches[0][0].to(lab.device, torch.bfloat16)).float()
        losses = [torch.nn.functional.mse_loss(outputs, targets.to(lab.device)) for _, targets in micro_batches]
        engine.backward(losses[0], retain_graph=True)
        try:
            engine.backward(losses[1])
        except RuntimeError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"in the second backward pass: {str(error)[: len(_MESSAGE)]}") from error
            raise
        engine.step()

    parameters = lab.parameters(engine)
    difference = min(
        (reference.largest_difference(parameters, each) for each in expected), key=lambda each: each.relative
    )
    assert difference.relative < 0.001, f"after {_STEPS} steps of two losses {difference}"
    return f"after {_STEPS} steps of two losses the parameters match plain PyTorch within {difference.relative:.1e}"
