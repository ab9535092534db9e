"""A job with pipeline parallelism, one stage per rank, and its reference. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dsfix.lab.models import MLP, regression_batch
from dsfix.lab.session import Lab

STEPS, MICRO_BATCHES = 2, 4
_LAYERS = 4


class Passing(nn.Module):  # type: ignore[misc,unused-ignore]
    """A layer that returns `step(layer, given)`, where both are often tuples; parts: its submodules."""

    def __init__(self, step: Callable[[Any, Any], Any], **parts: nn.Module) -> None:
        super().__init__()
        self._step = step
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, given: Any) -> Any:
        return self._step(self, given)


def block(seed: int) -> nn.Module:
    """Float [n, 16] -> [n, 16]."""
    result: nn.Module = MLP(depth=1, seed=seed).blocks[0]
    return result


def head() -> nn.Module:
    """Float [n, 16] -> [n, 1]."""
    result: nn.Module = MLP(depth=0).head
    return result


def train(lab: Lab, config: Mapping[str, Any], learning_rate: float) -> dict[str, torch.Tensor]:
    """Trains with SGD; returns the parameters of this rank's stage."""
    return lab.parameters(train_layers(lab, layers(), batches(), config, learning_rate))


def train_layers(
    lab: Lab,
    layers: Sequence[nn.Module],
    batches: Sequence[tuple[Any, torch.Tensor]],
    config: Mapping[str, Any],
    learning_rate: float,
) -> Any:
    """`train` for other layers and batches; returns the engine."""
    module = lab.deepspeed.pipe.PipelineModule(
        layers=list(layers), num_stages=lab.world_size, loss_fn=_loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][1]),
        "gradient_accumulation_steps": MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": learning_rate}},
        **config,
    }
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    source = iter(batches)
    for _ in range(STEPS):
        engine.train_batch(data_iter=source)
    return engine


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # older releases of torch cannot go back through a loss of two dtypes
    return functional.mse_loss(outputs.to(targets.dtype), targets)


def expected(learning_rates: Sequence[float]) -> dict[str, torch.Tensor]:
    """The parameters of all stages in plain PyTorch, with one learning rate per stage."""
    return expected_layers(layers(), batches(), learning_rates)


def expected_layers(
    layers: Sequence[nn.Module], batches: Sequence[tuple[Any, torch.Tensor]], learning_rates: Sequence[float]
) -> dict[str, torch.Tensor]:
    """`expected` for other layers and batches."""
    model = nn.Sequential(*layers)
    length = len(model) // len(learning_rates)  # layers per stage: "uniform"
    groups = [
        {"params": model[stage * length : (stage + 1) * length].parameters(), "lr": rate}
        for stage, rate in enumerate(learning_rates)
    ]
    optimizer = torch.optim.SGD(groups, lr=0.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for inputs, targets in batches[step * MICRO_BATCHES : (step + 1) * MICRO_BATCHES]:
            loss: Any = functional.mse_loss(model(inputs), targets)
            (loss / MICRO_BATCHES).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def of_stage(everything: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The subset of `expected(...)` that `train(...)` returned on this rank."""
    return {name: everything[name] for name in parameters}


def layers() -> list[nn.Module]:
    """Blocks of float [n, 16] -> [n, 16], and a head -> [n, 1]."""
    model = MLP(depth=_LAYERS - 1)
    return [*model.blocks, model.head]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One for each micro-batch of the job."""
    return [regression_batch(rank=0, step=step) for step in range(STEPS * MICRO_BATCHES)]
