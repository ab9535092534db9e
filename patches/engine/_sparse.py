"""Two ranks that train an embedding with sparse gradients, and plain PyTorch. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version
from torch import nn

from dsfix.lab import reference
from dsfix.patch import BugPresent, CannotTell

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEPS, _LEARNING_RATE = 2, 0.1
_WORDS = torch.tensor([[1, 2, 2], [2, 3, 0]])


class _Model(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.words, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4)
        with torch.no_grad():
            for each in self.parameters():
                each.copy_(torch.randn(each.shape, generator=generator))

    def forward(self, rank: int, used: str) -> Any:
        """used: how the embedding is: "looked up", "densely", "not"."""
        x = torch.ones(4, device=self.head.weight.device) * (rank + 1)
        if used == "looked up":
            x = x + self.words(_WORDS[rank].to(x.device)).mean(0)
        if used == "densely":
            x = x + self.words.weight.sum(0)
        return self.head(x).pow(2).sum()


def train(lab: Lab, used: Sequence[str], config: dict[str, Any], factor: float = 1) -> str:
    """Trains; compares with plain PyTorch. used: by each rank. factor: by which sparse gradients may be too large.

    Raises BugPresent where they are, or ranks exchange gradients of different layouts.
    """
    if Version(lab.deepspeed.__version__) < Version("0.13.0"):
        raise CannotTell("this release reduces no gradients on a CPU")
    model = _Model()
    stepper = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    config = {"train_micro_batch_size_per_gpu": 1, **config}
    engine = lab.initialize(model, config, model_parameters=list(model.parameters()), optimizer=stepper)
    reduce = engine._reduce_non_expert_gradients

    def compared(gradients: Any, *more: Any) -> None:
        layouts: list[Any] = [None] * len(used)
        torch.distributed.all_gather_object(layouts, [type(each).__name__ for each in gradients])
        if layouts[0] != layouts[1]:
            raise BugPresent(f"the embedding's gradient is a {layouts[0][0]} on rank 0, a {layouts[1][0]} on rank 1")
        reduce(gradients, *more)

    engine._reduce_non_expert_gradients = compared
    for _ in range(_STEPS):
        engine.backward(engine(lab.rank, used[lab.rank]))
        engine.step()
    wrong = {f"those of an embedding's gradient times {factor:g}": _plain(used, factor)} if factor != 1 else {}
    return reference.compare(lab.parameters(engine), _plain(used, 1), wrong, after=f"{' and '.join(used)}:")


def _plain(used: Sequence[str], factor: float) -> dict[str, torch.Tensor]:
    model = _Model()
    words, head = list(model.words.parameters()), list(model.head.parameters())
    groups: Any = [{"params": words, "lr": _LEARNING_RATE * factor}, {"params": head}]
    optimizer = torch.optim.SGD(groups, lr=_LEARNING_RATE)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss: Any = sum(model(rank, each) for rank, each in enumerate(used)) / len(used)
        loss.backward()
        optimizer.step()
    return {name: each.detach() for name, each in model.named_parameters()}
