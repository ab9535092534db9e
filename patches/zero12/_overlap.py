"""One step of ZeRO-2 with overlap_comm, for reproductions in which a gradient is overwritten before it is averaged.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dsfix.patch import CannotTell

if TYPE_CHECKING:
    from dsfix.lab import Lab

WIDTH = 16
MATRIX, VECTOR = (WIDTH, WIDTH), (WIDTH,)
_LEARNING_RATE = 0.5

Mixture = Mapping["tuple[int, int]", int]


class Layers(nn.Module):  # type: ignore[misc,unused-ignore]
    """Matrices, each followed by tanh, and vectors to multiply with: float [n, WIDTH] -> the same.

    side: the layers that are computed on another stream.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], side: Collection[int] = ()) -> None:
        super().__init__()
        self.side = side
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape, generator=generator) / 2) for shape in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, weight in enumerate(self.weights):
            layer = self._on_another_stream if number in self.side and x.is_cuda else _layer
            x = layer(x, weight)
        return x

    def _on_another_stream(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        current, other = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
        other.wait_stream(current)
        with torch.cuda.stream(other):
            x = _layer(x, weight)
        current.wait_stream(other)
        return x


def _layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ weight) if weight.dim() == 2 else x * weight


@dataclass(frozen=True)
class OverlappedStep:
    """before, seen: the weights by layer before and after the step; gradients: by rank and layer."""

    lab: Lab
    before: list[torch.Tensor]
    gradients: list[list[torch.Tensor]]
    seen: list[torch.Tensor]

    def compare(self, layer: int, wrong: Mapping[str, Mixture], within: float = 1e-4, averaged: bool = False) -> str:
        """What a reproduction reports. The bug is present if the weight of `layer` is one of `wrong`: (layer, rank) ->
        the layer whose gradient was averaged in place of that rank's. Otherwise all weights must be right.

        averaged: that gradient had been averaged over the ranks by then. Raises BugPresent or AssertionError.
        """
        compare, right = self.lab.reference.compare, self._weights({})
        mixed = {what: _named(self._weights(mixture, averaged), layer) for what, mixture in wrong.items()}
        told: Any = {"within": within, "after": "after one step", "what": "the weights"}
        compare(_named(self.seen, layer), _named(right, layer), mixed, **told)
        result: str = compare(_named(self.seen), _named(right), **told)
        return result

    def _weights(self, mixture: Mixture, averaged: bool = False) -> list[torch.Tensor]:
        """The weights after the step, computed in plain PyTorch."""
        means = [torch.stack(each).mean(0) for each in zip(*self.gradients)]
        result = []
        for layer, weight in enumerate(self.before):
            used = []
            for rank, gradients in enumerate(self.gradients):
                instead = mixture.get((layer, rank))
                others = means if averaged else gradients
                used.append(gradients[layer] if instead is None else others[instead])
            result.append(weight - _LEARNING_RATE * torch.stack(used).mean(0))
        return result


def one_step(
    lab: Lab, shapes: Sequence[tuple[int, ...]], reduce_bucket_size: int, side: Collection[int] = (), **options: Any
) -> OverlappedStep:
    """Trains layers of these shapes; side: those computed on another stream; options: of the config.

    Raises CannotTell on a GPU, where it depends on timing whether the bug shows.
    """
    if not lab.emulated:
        raise CannotTell("whether a gradient is overwritten depends on timing, which only the emulated device controls")
    model = Layers(shapes, side)
    before = [weight.detach().clone() for weight in model.weights]
    gradients = []
    for rank in range(lab.world_size):
        gradients.append(list(torch.autograd.grad(_loss(model, *_batch(lab, rank)), list(model.weights))))
    config = {
        "train_micro_batch_size_per_gpu": len(_batch(lab, 0)[0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": reduce_bucket_size},
        **options,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(_loss(engine, *(each.to(lab.device) for each in _batch(lab, lab.rank))))
    engine.step()
    return OverlappedStep(lab, before, gradients, list(lab.parameters(engine).values()))


def _batch(lab: Lab, rank: int) -> Any:
    return lab.models.regression_batch(rank, step=0, width=WIDTH)


def _loss(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = (model(inputs) - targets).square().sum()
    return result


def _named(weights: list[torch.Tensor], layer: int | None = None) -> dict[str, torch.Tensor]:
    return {f"layer {number}": weight for number, weight in enumerate(weights) if layer in (None, number)}
