"""Batches of variable size with the scaling method "sqrt": the learning rate scheduler cannot be created.

Why: `scale_lr` passes the ratio of two batch sizes, a number, to `torch.sqrt`, which takes only tensors. The scheduler
    scales the rate of the first batch when it is created, and raises TypeError: sqrt(): argument 'input' (position 1)
    must be Tensor, not float.
How: the square root of a number is that of Python, as in 0.18.4. That of a tensor is torch's, as before.
Workaround: Scripts use a scheduler of their own, or set the rate of each group. You can keep it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCALE = "deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr:scale_lr"


def square_root(ratio: Any) -> Any:
    """Of a number or a tensor."""
    import torch

    if torch.is_tensor(ratio):
        return torch.sqrt(ratio)
    took_effect(__name__, "the learning rate was scaled by the square root (unpatched: TypeError)")
    return math.sqrt(ratio)


PATCH = Patch(
    title='Batches of variable size, learning rate scaled by "sqrt": TypeError, sqrt(): must be Tensor, not float',
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.5,<0.18.4"},
    changes=(
        Edit(
            _SCALE,
            replace="return base_lr * torch.sqrt(batch_size / base_batch_size)",
            code="return base_lr * square_root(batch_size / base_batch_size)",
            uses=(square_root,),
        ),
    ),
    symptom=r"in scale_lr\n(.*\n){1,3}TypeError: sqrt\(\): argument 'input' \(position 1\) must be Tensor, not",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7733": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7104": "introduced in 0.16.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7735": "fixed in 0.18.4",
    },
    fixed_in="0.18.4",
    fixed=(Source(_SCALE, "return base_lr * math.sqrt(batch_size / base_batch_size)"),),
)

_LEARNING_RATE, _SIZE, _SIZES = 0.1, 4, (2, 4, 6)


def reproduce(lab: Lab) -> str:
    torch, version = lab.torch, lab.deepspeed.__version__
    try:
        from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import (
            lr_scheduler_for_variable_batch_size,
        )
    except ImportError:
        raise CannotTell(f"deepspeed {version} has no batches of variable size") from None
    generator = torch.Generator().manual_seed(0)
    batches = [[torch.randn(size, width, generator=generator) for width in (16, 1)] for size in _SIZES]

    def plain(scale: Any) -> dict[str, Any]:
        model = lab.models.MLP()
        for inputs, targets in batches:
            parameters = dict(model.named_parameters())
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            rate = _LEARNING_RATE * scale(len(inputs) / _SIZE)
            for parameter, gradient in zip(parameters.values(), torch.autograd.grad(loss, list(parameters.values()))):
                parameter.data -= rate * gradient
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    reports = []
    for method, scale in {"linear": float, "sqrt": math.sqrt}.items():
        model = lab.models.MLP()
        config = {"optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}}}
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        try:
            scheduler = lr_scheduler_for_variable_batch_size(
                _SIZE, list(_SIZES), None, engine.optimizer, lr_scaling_method=method
            )
        except TypeError as error:
            if "sqrt(): argument 'input'" in str(error):
                raise BugPresent(str(error)) from error
            raise
        for inputs, targets in batches:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
            scheduler.step()
        after = f"{method}: after steps of {_SIZES} samples"
        reports.append(lab.reference.compare(lab.parameters(engine), plain(scale), {}, after=after))
    return "; ".join(reports)
