"""Tiny models and batches, equal on every rank and in every run for equal arguments. Importing this imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class MLP(nn.Module):  # type: ignore[misc,unused-ignore]
    """`depth` blocks of Linear, LayerNorm and ReLU, then a Linear to one number: float [n, width] -> [n, 1]."""

    def __init__(self, width: int = 16, depth: int = 2, seed: int = 0) -> None:
        super().__init__()
        with _seeded(seed):
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(depth)
            )
            self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self(inputs), targets)


class Branches(nn.Module):  # type: ignore[misc,unused-ignore]
    """The sum of two MLPs; a batch may skip the second: float [n, width] -> [n, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MLP(), MLP(seed=1)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        result: torch.Tensor = self.first(x) + self.second(x) if both else self.first(x)
        return result

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, both: bool) -> torch.Tensor:
        return functional.mse_loss(self(inputs, both), targets)


class Block(nn.Module):  # type: ignore[misc,unused-ignore]
    """A pre-norm transformer block with causal attention: float [n, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, length, width))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class Transformer(nn.Module):  # type: ignore[misc,unused-ignore]
    """A causal language model: int64 tokens [n, length] -> logits [n, length, vocabulary].

    checkpointing: None, "reentrant" or "non-reentrant" gradient checkpointing of every block.
    """

    def __init__(
        self,
        vocabulary: int = 32,
        width: int = 16,
        heads: int = 2,
        blocks: int = 2,
        length: int = 16,
        checkpointing: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if checkpointing not in (None, "reentrant", "non-reentrant"):
            raise ValueError(f"checkpointing must be None, 'reentrant' or 'non-reentrant', got {checkpointing!r}")
        self.checkpointing = checkpointing
        with _seeded(seed):
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
        result: torch.Tensor = self.head(self.norm(x))
        return result

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())


def regression_batch(rank: int, step: int, size: int = 4, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [size, width] and targets [size, 1] for an MLP, on the CPU; `step` counts micro-batches."""
    generator = _generator(rank, step)
    return torch.randn(size, width, generator=generator), torch.randn(size, 1, generator=generator)


def token_batch(
    rank: int, step: int, size: int = 2, length: int = 8, vocabulary: int = 32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and next tokens [size, length] for a Transformer, on the CPU; `step` counts micro-batches."""
    tokens = torch.randint(vocabulary, (size, length + 1), generator=_generator(rank, step))
    return tokens[:, :-1], tokens[:, 1:]


def _generator(rank: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * rank + step)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global generator, and restores its state at the end."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield
