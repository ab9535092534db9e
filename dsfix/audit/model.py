"""The model that the audit trains, the same on every rank and in the reference, and its batches. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dsfix.audit import moe
from dsfix.audit.muon import is_matrix
from dsfix.audit.plan import Plan
from dsfix.audit.unsupported import Unsupported

VOCABULARY, WIDTH, HIDDEN, ODD, LENGTH = 37, 16, 64, 13, 6
_BLOCKS = 2
_RANK = 4
_QUIET = 8.0  # by which the layer's input of experts is divided: what chooses them is louder
_AUXILIARY = 0.05


class _Lora(nn.Module):  # type: ignore[misc,unused-ignore]
    """A Linear and its adapter: float [..., width] -> [..., width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.lora_a, self.lora_b = nn.Linear(width, _RANK, bias=False), nn.Linear(_RANK, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + 2.0 * self.lora_b(self.lora_a(x))
        return result


class _Block(nn.Module):  # type: ignore[misc,unused-ignore]
    """Pre-norm: tokens mixed causally, then an MLP: float [n, length, width] -> the same."""

    def __init__(self, lora: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = _Lora(WIDTH) if lora else nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, causal: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(causal.to(x.dtype) @ self.norm1(x))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


def tokens(plan: Plan) -> int:
    """Of one forward on one rank."""
    return plan.micro_batch * LENGTH


class Model(nn.Module):  # type: ignore[misc,unused-ignore]
    """A tiny causal language model: int64 tokens [n, length + 1] -> its loss, in the form that plan.backwards says.

    It has what bites: an embedding tied to the head, a module that is used twice in one forward, parameters of odd
    sizes and of one element, one that is larger than the others (up), one that is used in every second step only
    (sometimes), biases, LayerNorm, and buffers of three dtypes; and experts, if the plan says so.
    """

    causal: torch.Tensor
    positions: torch.Tensor
    counted: torch.Tensor
    routes: torch.Tensor

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(_Block(plan.lora) for _ in range(_BLOCKS))
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.narrow, self.widen = nn.Linear(WIDTH, ODD), nn.Linear(ODD, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        causal = torch.tril(torch.ones(LENGTH, LENGTH))
        self.register_buffer("causal", causal / causal.sum(1, keepdim=True))
        self.register_buffer("positions", torch.arange(LENGTH))
        self.register_buffer("counted", torch.ones(LENGTH, dtype=torch.bool), persistent=False)
        if plan.moe:
            self.moe = moe.Mixture(WIDTH, plan.moe, moe.capacity(plan, tokens(plan)))
            self.register_buffer("routes", moe.routes(VOCABULARY, WIDTH))

    def forward(self, tokens: torch.Tensor, sometimes: bool, factor: float) -> Any:
        """factor: multiplies the loss; not finite where the plan wants gradients that are not."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.embed(inputs)
        x = x + torch.sin(self.positions.to(x.dtype) / LENGTH).unsqueeze(1)
        if self.plan.checkpointing == "reentrant" and not x.requires_grad:
            x.requires_grad_()  # as training scripts do with a frozen embedding
        x = self._blocks(self.shared(x))
        x = self.shared(x) + self.widen(torch.tanh(self.narrow(x)))
        if sometimes:
            x = x + self.sometimes(x)
        auxiliary: Any = 0.0
        if self.plan.moe:
            mixed, auxiliary, *_ = self.moe(
                functional.layer_norm(x, (WIDTH,)) / _QUIET + self.routes[inputs].to(x.dtype)
            )
            x = x + mixed
        logits = self.head(self.norm(x) * torch.sigmoid(self.gate(x)))
        wide = logits if logits.dtype == torch.float64 else logits.float()
        each = functional.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none")
        loss = ((each.view_as(targets) * self.counted).mean() + _AUXILIARY * auxiliary) * factor
        if self.plan.backwards == "dict":
            return {"loss": loss, "logits": logits}
        if self.plan.backwards == "two":
            return loss, 0.01 * logits.to(loss.dtype).square().mean()
        return loss

    def _blocks(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.plan.checkpointing == "none":
                x = block(x, self.causal)
            else:
                x = checkpoint(block, x, self.causal, use_reentrant=self.plan.checkpointing == "reentrant")
        return x


def losses(output: Any) -> tuple[torch.Tensor, ...]:
    """The losses in what `Model` returns, each of which wants its backward."""
    if isinstance(output, dict):
        return (output["loss"],)
    return output if isinstance(output, tuple) else (output,)


def build(plan: Plan, seed: int = 0) -> Model:
    """The model on the CPU in fp32 with its initial weights; `seed` is added to the plan's. Raises Unsupported."""
    if plan.freeze == "base" and not plan.lora:
        raise Unsupported("freeze 'base' leaves nothing to train without LoRA layers")
    state = torch.get_rng_state()
    model = Model(plan)
    torch.set_rng_state(state)
    generator = torch.Generator().manual_seed(plan.seed + seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, parameter.shape, generator))
    return freeze(model, plan)


def initial(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """The initial weights of a parameter: nothing is zero, so that every gradient counts."""
    noise = torch.randn(shape, generator=generator)
    if name == "moe.gate.weight":
        return moe.initial_gate(noise)
    if "norm" in name and name.endswith("weight"):
        return 1.0 + 0.1 * noise
    return noise * (0.3 if len(shape) < 2 else 0.8 / math.sqrt(shape[-1]))


def freeze(model: Model, plan: Plan) -> Model:
    """`model` with its requires_grad as the plan says."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not _frozen(name, plan)
    return model


def _frozen(name: str, plan: Plan) -> bool:
    if plan.freeze == "base":
        return "lora_" not in name
    if plan.freeze == "part":
        return (name.startswith("blocks.1.") and "lora_" not in name) or name == "narrow.bias"
    return False


@dataclass(frozen=True)
class Group:
    """A parameter group: the names of its parameters, and its own lr (as a factor) and weight decay.

    muon: Muon updates them.
    """

    names: tuple[str, ...]
    rate: float
    weight_decay: float
    muon: bool = False


def groups(model: Model, plan: Plan) -> list[Group]:
    """The optimizer's parameter groups: those of `whole_groups`, and those of their experts after all of them.

    So does DeepSpeed's split_params_into_different_moe_groups_for_optimizer. With Muon each is one for it, and one for
    Adam.
    """
    whole = whole_groups(model, plan)
    if not plan.optimizer and str((plan.config.get("optimizer") or {}).get("type")).lower() == "muon":
        return _muon_groups(model, whole)
    dense = [replace(group, names=tuple(n for n in group.names if not _is_expert(n))) for group in whole]
    experts = [replace(group, names=tuple(filter(_is_expert, group.names))) for group in whole]
    return [group for group in (*dense, *experts) if group.names]


def _muon_groups(model: Model, whole: list[Group]) -> list[Group]:
    shapes = {name: parameter.shape for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = []
    for group in whole:
        for which in (True, False):
            names = (name for name in group.names if name in shapes and is_matrix(name, shapes[name]) is which)
            found.append(replace(group, names=tuple(names), muon=which))
    return [group for group in found if group.names]


def _is_expert(name: str) -> bool:
    return name.startswith("moe.experts.")


def whole_groups(model: Model, plan: Plan) -> list[Group]:
    """The script's groups: matrices, what is not decayed, and embedding and gate at a higher rate; or one of all.

    The one holds the frozen parameters, too, as `model.parameters()` in a script does.
    """
    named = dict(model.named_parameters())
    if not plan.groups:
        return [Group(tuple(named), 1.0, 0.1)]
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    fast = tuple(name for name in trained if name.startswith(("embed.", "gate.", "blocks.0.mix.lora_b")))
    plain = tuple(name for name, shape in ((n, p.dim()) for n, p in trained.items()) if shape < 2 and name not in fast)
    decayed = tuple(name for name in trained if name not in fast and name not in plain)
    found = [Group(decayed, 1.0, 0.1), Group(plain, 0.5, 0.0), Group(fast, 2.0, 0.02)]
    return [group for group in found if group.names]


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one rank: tokens int64 [micro_batch, LENGTH + 1] and the other arguments of Model.forward."""

    tokens: torch.Tensor
    sometimes: bool
    factor: float


def batch(plan: Plan, step: int, micro: int, rank: int) -> Batch:
    """The same for the same place in the global batch, however many ranks share it.

    micro, rank: of plan.accumulation and plan.ranks.
    """
    generator = torch.Generator().manual_seed(1 + plan.seed + 1_000_003 * step + 1_009 * micro + 31 * rank)
    tokens = torch.randint(VOCABULARY, (plan.micro_batch, LENGTH + 1), generator=generator)
    broken = plan.skip_step == step and rank == plan.ranks - 1 and micro == plan.accumulation - 1
    return Batch(tokens, step % 2 == 0 or not plan.left_out, math.inf if broken else 1.0)


def batches(plan: Plan, step: int) -> Iterator[Batch]:
    """The global batch of a step: of all ranks and all accumulations."""
    for micro in range(plan.accumulation):
        for rank in range(plan.ranks):
            yield batch(plan, step, micro, rank)
