"""A loss over logits that is computed in tiles, TiledLoss, and labels of which some are masked."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_TILES, _WORDS, _LENGTH = 2, 6, 8
_FITS: Any = {"precision": ("fp32", "bf16")}


def _mean(logits: Any, labels: Any, vocab_size: int, shift_labels: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(logits.float().reshape(-1, vocab_size), shift_labels.reshape(-1))


def _trained(job: Job, masked: int) -> None:
    torch = job.torch
    tiled = None
    if not job.plain:
        try:
            tiled = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").TiledLoss
        except (ImportError, AttributeError):
            job.bits("TiledLoss", "is not there")

    def forward(self: Any, inputs: Any) -> Any:
        logits = self.head(self.below(inputs))
        labels = torch.randint(_WORDS, (1, _LENGTH), generator=torch.Generator().manual_seed(1)).to(logits.device)
        labels[:, :masked] = -100
        if tiled:
            return tiled.apply(_mean, logits, _WORDS, labels, _TILES)
        return _mean(logits, None, _WORDS, labels)

    torch.manual_seed(0)
    below = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Tanh())
    engine = job.engine(job.model(forward, below=below, head=torch.nn.Linear(16, _WORDS)))

    def loss(batch: Any) -> Any:
        inputs = batch[0]
        return engine(torch.cat([inputs, -inputs]).unsqueeze(0)).float()

    for step in range(3):
        job.train(engine, step, loss)


@scenario("a loss is computed in tiles with as many labels each", pinned=[{"stage": "2"}], **_FITS)
def loss_in_equal_tiles(job: Job) -> None:
    _trained(job, 0)


@scenario("a loss is computed in tiles, one of which has masked labels", pinned=[{"stage": "1"}], **_FITS)
def loss_in_unequal_tiles(job: Job) -> None:
    _trained(job, 3)
