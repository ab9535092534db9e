"""A tiny model whose experts AutoEP shards, and its reference in plain PyTorch. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from dsfix.lab import Lab

WIDTH, INNER, EXPERTS, CHOSEN = 16, 8, 4, 2
CONFIG: Mapping[str, Any] = {
    "expert_parallel": {"enabled": True, "autoep_size": 2, "preset_model": "mixtral", "use_grouped_mm": False}
}


class _Experts(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / 4)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 4)


class _Block(nn.Module):  # type: ignore[misc,unused-ignore]
    """As in Mixtral of transformers 5: the CHOSEN best experts of each token, with weights that sum to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), _Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = self.gate(x).softmax(dim=-1)
        chosen = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(CHOSEN, dim=-1).indices, 1.0)
        weights = probabilities * chosen
        gate, up = torch.einsum("...w,eiw->...ei", x, self.experts.gate_up_proj).chunk(2, dim=-1)
        each = torch.einsum("...ei,ewi->...ew", functional.silu(gate) * up, self.experts.down_proj)
        return (weights.unsqueeze(-1) * each).sum(dim=-2) / weights.sum(dim=-1, keepdim=True)


class Mixture(nn.Module):  # type: ignore[misc,unused-ignore]
    """float [n, WIDTH] -> [n, 1], with Mixtral's names. frozen: the router and the experts are."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(model_type="mixtral", num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN)
        layer = nn.Module()
        layer.below, layer.mlp = nn.Linear(WIDTH, WIDTH), _Block()
        layer.mlp.requires_grad_(not frozen)
        self.model, self.head = nn.Module(), nn.Linear(WIDTH, 1)
        self.model.layers = nn.ModuleList([layer])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer: Any = self.model.get_submodule("layers.0")
        result: torch.Tensor = self.head(layer.mlp(layer.below(x[None]).tanh())[0])
        return result

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return functional.mse_loss(self(inputs), targets)


def of_rank(parameters: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """What this rank has of the model's parameters after AutoEP with CONFIG, by the names that it gives them."""
    own = EXPERTS // 2
    mine = slice(rank % 2 * own, (rank % 2 + 1) * own)
    result = {}
    for name, each in parameters.items():
        path, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            result[f"{path}.w1"], result[f"{path}.w3"] = each[mine].chunk(2, dim=1)
        elif last == "down_proj":
            result[f"{path}.w2"] = each[mine]
        else:
            result[name.replace(".gate.", ".router.gate.")] = each
    return result


def train(lab: Lab, model: Mixture, steps: Sequence[Any], config: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """This rank's parameters after these steps with AutoEP. config: what CONFIG does not say."""
    engine = lab.initialize(
        model, {**CONFIG, "train_micro_batch_size_per_gpu": len(steps[0][0][0]), **config}, **options
    )
    for step in steps:
        inputs, targets = (each.to(lab.device) for each in step[lab.rank])
        engine.backward(functional.mse_loss(engine(inputs), targets))
        engine.step()
    return lab.parameters(engine)
