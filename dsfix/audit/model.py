"""The model that the audit trains, on every rank and in the reference, and its batches. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dsfix.audit.plan import WIDTH, Plan, Unsupported

VOCABULARY, HIDDEN, ODD, LENGTH = 37, 64, 13, 6
_BLOCKS = 2
_RANK = 4


class _Lora(nn.Module):  # type: ignore[misc,unused-ignore]
    """A Linear with a LoRA adapter: float [..., width] -> [..., width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.lora_a, self.lora_b = nn.Linear(width, _RANK, bias=False), nn.Linear(_RANK, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + 2.0 * self.lora_b(self.lora_a(x))
        return result


class _Block(nn.Module):  # type: ignore[misc,unused-ignore]
    """Pre-norm block: causal token mixing, then an MLP: float [n, length, width] -> the same."""

    def __init__(self, lora: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = _Lora(WIDTH) if lora else nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, causal: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(causal.to(x.dtype) @ self.norm1(x))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class Model(nn.Module):  # type: ignore[misc,unused-ignore]
    """A tiny causal language model: int64 tokens [n, length + 1] -> its loss, in the form set by plan.backwards.

    It covers known trouble spots: an embedding tied to the head, a module used twice in one forward, parameters of odd
    sizes and of one element, one larger than the others (up), one used in every second step only (sometimes), biases,
    LayerNorm, and buffers of three dtypes.
    """

    causal: torch.Tensor
    positions: torch.Tensor
    counted: torch.Tensor

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

    def forward(self, tokens: torch.Tensor, sometimes: bool, factor: float) -> Any:
        """factor: multiplies the loss; inf where the plan wants non-finite gradients."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.embed(inputs)
        x = x + torch.sin(self.positions.to(x.dtype) / LENGTH).unsqueeze(1)
        if self.plan.checkpointing == "reentrant" and not x.requires_grad:
            x.requires_grad_()  # as training scripts do for a frozen embedding
        x = self._blocks(self.shared(x))
        x = self.shared(x) + self.widen(torch.tanh(self.narrow(x)))
        if sometimes:
            x = x + self.sometimes(x)
        logits = self.head(self.norm(x) * torch.sigmoid(self.gate(x)))
        wide = logits if logits.dtype == torch.float64 else logits.float()
        each = functional.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none")
        loss = (each.view_as(targets) * self.counted).mean() * factor
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
    if isinstance(output, dict):
        return (output["loss"],)
    return output if isinstance(output, tuple) else (output,)


def build(plan: Plan, seed: int = 0) -> Model:
    """Returns the model on the CPU in fp32 with initial weights; `seed` is added to the plan's. Raises Unsupported."""
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
    """Returns the initial weights of a parameter: none is zero, so that no gradient vanishes."""
    noise = torch.randn(shape, generator=generator)
    if "norm" in name and name.endswith("weight"):
        return 1.0 + 0.1 * noise
    return noise * (0.3 if len(shape) < 2 else 0.8 / math.sqrt(shape[-1]))


def freeze(model: Model, plan: Plan) -> Model:
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
class Batch:
    """One micro-batch of one rank, the arguments of Model.forward; tokens: int64 [micro_batch, LENGTH + 1]."""

    tokens: torch.Tensor
    sometimes: bool
    factor: float


def batch(plan: Plan, step: int, micro: int, rank: int) -> Batch:
    """Returns the micro-batch at a position of the global batch, independent of how many ranks share it.

    micro, rank: the position, out of plan.accumulation and plan.ranks.
    """
    generator = torch.Generator().manual_seed(1 + plan.seed + 1_000_003 * step + 1_009 * micro + 31 * rank)
    tokens = torch.randint(VOCABULARY, (plan.micro_batch, LENGTH + 1), generator=generator)
    broken = plan.skip_step == step and rank == plan.ranks - 1 and micro == plan.accumulation - 1
    return Batch(tokens, step % 2 == 0 or not plan.left_out, math.inf if broken else 1.0)


def batches(plan: Plan, step: int) -> Iterator[Batch]:
    for micro in range(plan.accumulation):
        for rank in range(plan.ranks):
            yield batch(plan, step, micro, rank)
