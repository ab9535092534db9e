"""A tiny model with DeepSpeed's mixture of experts, and the same in plain PyTorch. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from dsfix.lab import Lab

WIDTH, EXPERTS = 16, 2
_LAYER = "layer.deepspeed_moe.experts.deepspeed_experts."


class Mixture(nn.Module):  # type: ignore[misc,unused-ignore]
    """All experts in one process, with room for every token, of which each passes one: float [n, WIDTH] -> [n, 1].

    scale: what the experts' gradients are multiplied by.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        if scale != 1.0:
            for parameter in self.experts.parameters():
                parameter.register_hook(lambda gradient: scale * gradient)  # type: ignore[no-untyped-call,unused-ignore]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.below(x).tanh()
        probabilities = self.router(x).softmax(dim=1)
        chosen = torch.zeros_like(probabilities).scatter(1, probabilities.argmax(dim=1, keepdim=True), 1.0)
        weights = probabilities * chosen
        mixed = sum(weights[:, [number]] * expert(x) for number, expert in enumerate(self.experts))
        result: torch.Tensor = self.head(mixed)
        return result

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(self(inputs), targets)


class Sharded(nn.Module):  # type: ignore[misc,unused-ignore]
    """The same model with DeepSpeed's layer, whose experts `ep_size` ranks share."""

    def __init__(self, lab: Lab, ep_size: int) -> None:
        super().__init__()
        _ = lab.deepspeed
        from deepspeed.moe import layer  # type: ignore[import-not-found,unused-ignore]

        if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
            torch.compiler.set_stance("force_eager")  # else parts of the layer are compiled on first use
        same = Mixture()
        self.below, self.head = same.below, same.head
        self.layer = layer.MoE(
            WIDTH, nn.Linear(WIDTH, WIDTH), EXPERTS, ep_size, k=1, capacity_factor=EXPERTS, use_rts=False
        )
        self.layer.deepspeed_moe.gate.wg.load_state_dict(same.router.state_dict())
        own = self.layer.deepspeed_moe.experts.deepspeed_experts
        self._first = lab.rank % ep_size * len(own)
        for number, expert in enumerate(own):
            expert.load_state_dict(same.experts[self._first + number].state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _, _ = self.layer(self.below(x).tanh())
        result: torch.Tensor = self.head(mixed)
        return result

    def groups(self) -> list[dict[str, Any]]:
        """The parameters as DeepSpeed's optimizers want them: the experts apart."""
        from deepspeed.moe import utils  # type: ignore[import-not-found,unused-ignore]

        split = utils.split_params_into_different_moe_groups_for_optimizer
        return list(split({"params": list(self.parameters()), "name": "all"}))

    def named(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """This rank's tensors, with the names that they have in `Mixture`."""
        result = {}
        for name, tensor in tensors.items():
            if name.startswith(_LAYER):
                number, _, rest = name[len(_LAYER) :].partition(".")
                name = f"experts.{self._first + int(number)}.{rest}"
            result[name.replace("layer.deepspeed_moe.gate.wg.", "router.")] = tensor
        return result


def train(lab: Lab, ep_size: int, steps: Sequence[Sequence[Any]], rate: float, **options: Any) -> dict[str, Any]:
    """Train the model with SGD; returns this rank's parameters, with the names that they have in `Mixture`.

    steps: for each step a batch for each rank; options: of the config.
    """
    model = Sharded(lab, ep_size)
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": rate}},
        **options,
    }
    engine = lab.initialize(model, config, model_parameters=model.groups())
    for step in steps:
        inputs, targets = (each.to(lab.device) for each in step[lab.rank])
        engine.backward(nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
    return model.named(lab.parameters(engine))
