"""Mixture of experts: the reference's layer, and DeepSpeed's (deepspeed.moe.layer.MoE) built from it. Imports torch.

Source: https://deepspeed.readthedocs.io/en/latest/moe.html; top-1: https://arxiv.org/abs/2101.03961; top-2:
https://arxiv.org/abs/2006.16668; more: https://github.com/deepspeedai/DeepSpeed/pull/5881.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from dsfix.audit.bounds import KERNELS
from dsfix.audit.plan import EXPERTS, Plan
from dsfix.audit.unsupported import Unsupported

if TYPE_CHECKING:
    from dsfix.lab.session import Lab

INNER = 8
_LEVELS = -torch.arange(EXPERTS).float()  # negative scores are covered, too


class _Expert(nn.Module):  # type: ignore[misc,unused-ignore]
    """float [..., width] -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, INNER), nn.Linear(INNER, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return result


class ReferenceMixture(nn.Module):  # type: ignore[misc,unused-ignore]
    """All experts in one process, each evaluated on all tokens: float [..., width] -> the same, and the auxiliary loss.

    Gating is at least in fp32. With one expert per token, its probability is the weight; with more, the weights of a
    token are normalized. The auxiliary loss is the number of experts times the sum over experts of mean probability
    times share of tokens; the share counts first experts for k <= 2, and all of a token's experts, divided by k, for
    k > 2. capacity: tokens per expert; those with the largest probability are kept.
    """

    def __init__(self, width: int, k: int, capacity: int) -> None:
        super().__init__()
        self.k, self.capacity = k, capacity
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(_Expert(width) for _ in range(EXPERTS))
        self.seen = torch.empty(0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = x.flatten(0, -2)
        wide = tokens if tokens.dtype == torch.float64 else tokens.float()
        scores = (wide @ self.gate.weight.to(wide.dtype).t()).log_softmax(1)
        self.seen = scores.detach()
        probabilities = scores.exp()
        order = scores.topk(self.k, dim=1).indices
        chosen = torch.zeros_like(scores).scatter(1, order, 1.0)
        counted = chosen / self.k if self.k > 2 else torch.zeros_like(scores).scatter(1, order[:, :1], 1.0)
        auxiliary = EXPERTS * (probabilities.mean(0) * counted.mean(0)).sum()
        weights = probabilities * chosen * self._fits(chosen)
        if self.k > 1:
            weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).eps)
        outputs = torch.stack([expert(tokens) for expert in self.experts], dim=1)
        mixed = (weights.to(x.dtype).unsqueeze(2) * outputs).sum(1)
        return mixed.view_as(x), auxiliary

    def _fits(self, chosen: torch.Tensor) -> torch.Tensor:
        """Returns 1.0 where an expert has room for the token."""
        wanted = self.seen.masked_fill(chosen == 0.0, -torch.inf)
        return (wanted.argsort(0, descending=True).argsort(0) < self.capacity).to(chosen)

    def undecided(self, rounded: ReferenceMixture) -> bool:
        """Whether rounding may route a token of the last forward differently; rounded: in lower precision."""
        ordered = self.seen.sort(1, descending=True).values
        gaps = [ordered[:, self.k - 1] - ordered[:, self.k], ordered[:, 0] - ordered[:, 1]]
        wanted = torch.zeros_like(self.seen).scatter(1, self.seen.topk(self.k, dim=1).indices, 1.0)
        columns = self.seen.masked_fill(wanted == 0.0, -torch.inf).sort(0, descending=True).values
        if self.capacity < len(columns):
            full = columns[self.capacity].isfinite()
            gaps.append((columns[self.capacity - 1] - columns[self.capacity])[full])
        likely = self.seen.topk(self.k + 1, dim=1).indices
        error = (self.seen - rounded.seen.double()).gather(1, likely).abs().max()
        return bool(torch.cat(gaps).min() <= 2 * KERNELS * error)


def routes(vocabulary: int, width: int) -> torch.Tensor:
    """Returns what is added to each token's input, float [vocabulary, width]: it clearly separates the experts."""
    generator = torch.Generator().manual_seed(0)
    found = torch.zeros(vocabulary, width)
    for row in found:
        row[:EXPERTS] = _LEVELS[torch.randperm(EXPERTS, generator=generator)]
    return found


def initial_gate(noise: torch.Tensor) -> torch.Tensor:
    """Returns the gate's initial weights: with `routes`, the next expert is less probable by a factor of 4."""
    return 1.4 * torch.eye(*noise.shape) + 0.02 * noise


def capacity(plan: Plan, tokens: int) -> int:
    """Returns the capacity: all tokens; one less for k > 2, where DeepSpeed drops the least probable."""
    return tokens if plan.moe <= 2 else tokens - 1


def _factor(plan: Plan, tokens: int) -> float:
    """Returns the capacity factor: DeepSpeed rounds k * factor * tokens / experts up."""
    return (capacity(plan, tokens) - 0.5) * EXPERTS / tokens / plan.moe


def deepspeed_layer(plan: Plan, mixture: ReferenceMixture, width: int, tokens: int, lab: Lab) -> Any:
    """Returns DeepSpeed's layer with the weights of `mixture` and this rank's experts. Raises Unsupported."""
    from deepspeed.moe import layer as layers
    from deepspeed.moe import sharded_moe

    options: dict[str, Any] = {"noisy_gate_policy": None, "use_rts": False, "min_capacity": 1}
    if plan.moe == 2:
        if "top2_2nd_expert_sampling" not in inspect.signature(layers.MoE).parameters:
            raise Unsupported("this DeepSpeed samples the second of two experts at random: use --moe 1")
        options["top2_2nd_expert_sampling"] = False
    if plan.moe > 2 and not hasattr(sharded_moe, "topkgating"):
        raise Unsupported(f"{plan.moe} experts per token require DeepSpeed 0.15.0: use --moe 1")
    factor = _factor(plan, tokens)
    layer = layers.MoE(width, _Expert(width), EXPERTS, plan.ep_size, plan.moe, capacity_factor=factor, **options)
    weights = {f"moe.{name}": parameter for name, parameter in mixture.named_parameters()}
    with torch.no_grad():
        own = {f"moe.{name}": parameter for name, parameter in layer.named_parameters()}
        for name, parameter in global_names(own, plan, lab).items():
            source = weights[name]
            parameter.copy_(source)
            parameter.requires_grad = source.requires_grad
    return layer


def apart(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the optimizer's groups with the experts in separate groups, split by DeepSpeed's function."""
    from deepspeed.moe.utils import (
        split_params_into_different_moe_groups_for_optimizer,
    )

    named = [{**group, "name": f"group{index}"} for index, group in enumerate(groups)]
    split: list[dict[str, Any]] = split_params_into_different_moe_groups_for_optimizer(named)
    return split


def _share(plan: Plan, lab: Lab) -> int:
    """Returns which of plan.ep_size shares of the experts this rank holds."""
    # neighbours hold different experts, unless the config wants them to hold the same
    alike = lab.world_size // plan.ep_size
    return lab.rank // alike if plan.config.get("use_data_before_expert_parallelism") else lab.rank % plan.ep_size


def _global_name(name: str, plan: Plan, share: int) -> str:
    """Returns the reference's name of a parameter of DeepSpeed's layer."""
    if not name.startswith("moe.deepspeed_moe."):
        return name
    found = re.fullmatch(r"moe\.deepspeed_moe\.experts\.deepspeed_experts\.(\d+)\.(.*)", name)
    if found is None:
        return name.replace("moe.deepspeed_moe.gate.wg.", "moe.gate.")
    return f"moe.experts.{share * EXPERTS // plan.ep_size + int(found[1])}.{found[2]}"


def global_names(tensors: Mapping[str, Any], plan: Plan, lab: Lab) -> dict[str, Any]:
    """Returns this rank's `tensors` by the reference's names."""
    share = _share(plan, lab)
    return {_global_name(name, plan, share): tensor for name, tensor in tensors.items()}
