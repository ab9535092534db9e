"""One step of ZeRO-2 with overlap_comm on late streams, for reproductions in which a bucket is reduced too late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell

if TYPE_CHECKING:
    from dsfix.lab import Lab

RANKS = 2
LAYERS = 4
LAYER = 16 * 16  # elements
_WIDTH = 16
_LEARNING_RATE = 0.5

Mixture = Mapping["tuple[int, int]", int]


@dataclass(frozen=True)
class Step:
    """before, seen: the weights of the layers before and after the step; gradients: rank -> those of the layers."""

    lab: Lab
    before: list[Any]
    gradients: list[list[Any]]
    seen: list[Any]

    def compare(self, layer: int, wrong: Mapping[str, Mixture]) -> str:
        """What a reproduction reports. The bug is present if the weight of `layer` is one of `wrong`: (layer, rank) ->
        the layer whose gradient was averaged in place of that rank's gradient. Otherwise all weights must be right.

        Raises BugPresent or AssertionError.
        """
        compare = self.lab.reference.compare
        right, after = self._weights({}), "after one step"
        mixed = {what: _named(self._weights(mixture), layer) for what, mixture in wrong.items()}
        compare(_named(self.seen, layer), _named(right, layer), mixed, after=after, what="the weights")
        result: str = compare(_named(self.seen), _named(right), after=after, what="the weights")
        return result

    def _weights(self, mixture: Mixture) -> list[Any]:
        """The weights after the step, computed in plain PyTorch."""
        means = [
            sum(self.gradients[rank][mixture.get((layer, rank), layer)] for rank in range(RANKS)) / RANKS
            for layer in range(LAYERS)
        ]
        return [weight - _LEARNING_RATE * mean for weight, mean in zip(self.before, means)]


def one_step(lab: Lab, reduce_bucket_size: int) -> Step:
    """Trains `LAYERS` layers of `LAYER` elements. Raises CannotTell on a GPU, where a race depends on timing."""
    lab.require_ranks(RANKS)
    if not lab.emulated:
        raise CannotTell("whether the race shows depends on timing; only the emulated CUDA device can force it")
    lab.late_streams()
    config = {
        "train_micro_batch_size_per_gpu": len(_batch(lab, 0)[0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": reduce_bucket_size},
    }
    model = _model(lab)
    before = [weight.detach().clone() for weight in model.parameters()]
    gradients = []
    for rank in range(RANKS):
        model.zero_grad()
        _loss(model, *_batch(lab, rank)).backward()
        gradients.append([weight.grad for weight in model.parameters()])
        model.zero_grad()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(_loss(engine, *(each.to(lab.device) for each in _batch(lab, lab.rank))))
    engine.step()
    return Step(lab, before, gradients, list(lab.parameters(engine).values()))


def _model(lab: Lab) -> Any:
    nn = lab.torch.nn
    lab.torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def _batch(lab: Lab, rank: int) -> Any:
    return lab.models.regression_batch(rank, step=0, width=_WIDTH)


def _loss(model: Any, inputs: Any, targets: Any) -> Any:
    return (model(inputs) - targets).square().sum()


def _named(weights: list[Any], layer: int | None = None) -> dict[str, Any]:
    return {f"layer {number}": weight for number, weight in enumerate(weights) if layer in (None, number)}
