"""Training with ZeRO++ hpZ, for reproductions: which weights the backward pass sees. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dsfix.lab import Lab

BEFORE = 7.0  # what the memory of a second copy holds before it is written
_LEARNING_RATE = 0.1


class _Product(torch.autograd.Function):
    """x @ weight, whose backward pass uses the weight of then, and shows it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, see: Callable[[torch.Tensor], None]) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.see = weight, see
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override,unused-ignore]
        weight = ctx.weight.detach()
        ctx.see(weight)
        return gradient @ weight.t(), ctx.saved_tensors[0].t() @ gradient, None


class _Head(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, width).view(width, 1))
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        see = lambda weight: self.seen.append(weight.clone())  # noqa: E731
        result: torch.Tensor = _Product.apply(x, self.weight, see)  # type: ignore[no-untyped-call,unused-ignore]
        return result


@dataclass(frozen=True)
class HeadTraining:
    """right, seen: the head's weight before the last step, and in its backward pass; expected, after: after it."""

    lab: Lab
    right: torch.Tensor
    seen: torch.Tensor
    expected: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]

    def compare(self, wrong: torch.Tensor) -> str:
        """What a reproduction reports: the backward pass has the right weights, or `wrong` ones: BugPresent."""
        name, compare = "head.weight", self.lab.reference.compare
        early = {"what their memory held before they were written": {name: wrong}}
        compare({name: self.seen}, {name: self.right}, early, after="in the backward pass", what="the weights")
        result: str = compare(self.after, self.expected, after="after the last step")
        return result


def train(lab: Lab, width: int, partition_size: int, steps: int, **options: Any) -> HeadTraining:
    """Trains an MLP with that head; options: of zero_optimization."""

    class ModelWithHead(lab.models.MLP):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(width)
            self.head = _Head(width)
            self.last = torch.nn.Linear(1, 16)  # with it, the head is released before the backward pass
            for parameter in self.last.parameters():
                torch.nn.init.constant_(parameter, 0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(super().forward(x)).mean(dim=1, keepdim=True)
            return result

    batches = [lab.models.regression_batch(rank, step=0, width=width) for rank in range(lab.world_size)]
    model = ModelWithHead()
    lab.reference.train(model, [batches] * (steps - 1), model.loss, "SGD", lr=_LEARNING_RATE)
    right = model.head.weight.detach().clone()
    expected = lab.reference.train(model, [batches], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    model = ModelWithHead()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {
            "stage": 3,
            "zero_hpz_partition_size": partition_size,
            "stage3_param_persistence_threshold": 0,
            **options,
        },
    }
    with _filled_memory():
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        inputs, targets = (each.to(lab.device) for each in batches[lab.rank])
        for _ in range(steps):
            # not mse_loss, whose backward pass makes the host wait on the emulated device
            loss = (engine(inputs) - targets).square().mean()
            engine.backward(loss)
            engine.step()
            loss.item()  # as most jobs do: or else the next forward pass may gather before the optimizer has written
    return HeadTraining(lab, right, model.head.seen[-1].cpu(), expected, lab.parameters(engine))


@contextmanager
def _filled_memory() -> Iterator[None]:
    """What torch.empty returns on the device holds BEFORE, at once, whatever waits on the current stream."""
    empty = torch.empty
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
    kept: list[torch.Tensor] = []  # memory that something waiting still uses is not filled again

    def filled(*args: Any, **options: Any) -> torch.Tensor:
        with torch.cuda.stream(aside):
            tensor = empty(*args, **options)
            if tensor.device.type == "cuda" and tensor.numel():
                kept.append(tensor.fill_(BEFORE))
                aside.synchronize()
        return tensor

    torch.empty = filled  # type: ignore[assignment,unused-ignore]
    try:
        yield
    finally:
        torch.empty = empty
