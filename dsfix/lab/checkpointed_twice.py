"""A bf16 model whose layer is applied in two checkpointed parts. Importing this imports torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dsfix.lab import half
from dsfix.lab.models import regression_batch
from dsfix.lab.reference import compare

if TYPE_CHECKING:
    from dsfix.lab.session import Lab

_LEARNING_RATE = 0.5


class Twice(nn.Module):  # type: ignore[misc,unused-ignore]
    """float [n, 16] -> [n, 1]. recount: whether the gradient of the layer's second use counts twice."""

    def __init__(self, checkpointed: bool = False, recount: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.layer, self.head = (nn.Linear(16, out) for out in (16, 16, 1))
        self.checkpointed, self.recount = checkpointed, recount

    def part(self, x: torch.Tensor, second: bool) -> torch.Tensor:
        weight: torch.Tensor = self.layer.weight
        bias: torch.Tensor = self.layer.bias
        if second and self.recount:
            weight, bias = 2 * weight - weight.detach(), 2 * bias - bias.detach()
        return nn.functional.linear(x, weight, bias).tanh()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.below(x)
        for second in (False, True):
            x = checkpoint(self.part, x, second, use_reentrant=True) if self.checkpointed else self.part(x, second)
        return self.head(x)


def step(lab: Lab) -> str:
    """One step of two micro-batches with BF16_Optimizer, without ZeRO and with ZeRO-1; compare with plain PyTorch.

    BugPresent: the gradient of the second use counts twice.
    """
    batches = [regression_batch(rank=0, step=number) for number in range(2)]
    sgd = functools.partial(torch.optim.SGD, lr=_LEARNING_RATE)
    right = half.train(Twice(), torch.bfloat16, [batches], sgd)
    wrong = half.train(Twice(recount=True), torch.bfloat16, [batches], sgd)
    reports = []
    for stage, accumulation in ((0, None), (1, "fp32")):
        model = Twice(checkpointed=True)
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "gradient_accumulation_steps": len(batches),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": accumulation},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            engine.backward(half.loss(engine, inputs, targets, model.head.weight))
            engine.step()
        reports.append(
            compare(
                lab.parameters(engine),
                right,
                {"those of the second use's gradient counted twice": wrong},
                within=0.01,
                after=f"ZeRO-{stage}: after a step of {len(batches)} micro-batches",
            )
        )
    return "; ".join(reports)
