"""Gradients that the script sets between backward and step, under ZeRO-3 with offload. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsfix.lab.models import MLP, regression_batch
from dsfix.lab.reference import compare

if TYPE_CHECKING:
    from dsfix.lab.session import Lab

_FACTOR, _CLIP_AT, _RATE, _STEPS = 3.0, 0.1, 1.0, 2


def clipped(lab: Lab, part: str) -> str:
    """Train with gradients that are tripled by `safe_set_{part}_grad`, then clipped; compare with plain PyTorch.

    BugPresent: they are clipped by the norm that they had before.
    """
    utils = lab.deepspeed.utils
    get, put = getattr(utils, f"safe_get_{part}_grad"), getattr(utils, f"safe_set_{part}_grad")
    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
    right, wrong = MLP(), MLP()
    for model, factor in ((right, _FACTOR), (wrong, 1.0)):
        parameters = list(model.parameters())
        for batch in batches:
            gradients = torch.autograd.grad(model.loss(*batch), parameters)
            norm = factor * torch.stack([gradient.norm() for gradient in gradients]).norm()
            assert norm > 2 * _CLIP_AT, norm
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients):
                    parameter.sub_(_RATE * _FACTOR * gradient * _CLIP_AT / norm)

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_clipping": _CLIP_AT,
        "optimizer": {"type": "SGD", "params": {"lr": _RATE}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        for parameter in model.parameters():
            put(parameter, get(parameter) * _FACTOR)
        engine.step()
    return compare(
        lab.parameters(engine),
        dict(right.named_parameters()),
        {"those of gradients clipped by their norm before": dict(wrong.named_parameters())},
        after=f"after {_STEPS} steps with tripled gradients",
    )
