"""Lion: the published step in plain PyTorch, in the dtype of its parameters. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch


class Lion(torch.optim.Optimizer):  # type: ignore[misc,unused-ignore]
    """The sign of an average of momentum and gradient, with decoupled decay. https://arxiv.org/abs/2302.06675

    An element whose average is zero does not move. betas: of that average and of the momentum; DeepSpeed's default.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[misc,unused-ignore]
    def step(self, closure: None = None) -> None:  # type: ignore[override,unused-ignore]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("exp_avg", torch.zeros_like(parameter))
                direction = momentum.lerp(parameter.grad, 1 - first).sign()
                parameter.sub_(group["lr"] * (direction + group["weight_decay"] * parameter))
                momentum.lerp_(parameter.grad, 1 - second)
                self.state[parameter] = {"exp_avg": momentum}  # other state of DeepSpeed is ignored


def still(gradient: torch.Tensor, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns a mask of the elements that a step changes by weight decay only. state: before the step."""
    return (gradient == 0.0) & (state.get("exp_avg", torch.zeros(())) == 0.0)
