"""A loss whose backward pass runs inside the forward pass."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_SHARDS = 2


def _fused(job: Job) -> Any:
    """DeepSpeed's TiledFusedLogitsLoss, where the release has it."""
    if job.plain:
        return None
    try:
        return importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").TiledFusedLogitsLoss
    except (ImportError, AttributeError):
        job.bits("TiledFusedLogitsLoss", "is not there")
        return None


@scenario(
    "logits and loss are computed in tiles, with TiledFusedLogitsLoss",
    pinned=[{"stage": stage} for stage in "123"],
    stage="123",
    precision=("fp32", "bf16"),  # it does not see the loss scale
    accumulation=("1",),
)
def tiled_logits(job: Job) -> None:
    nn = job.torch.nn
    fused = _fused(job)

    def loss_of(self: Any, x: Any, y: Any) -> Any:
        return nn.functional.mse_loss(self.head(x).float(), y)

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        x, y = self.below(inputs).unsqueeze(0), targets.unsqueeze(0)
        if fused:
            return fused.apply(loss_of, self, x, y, None, _SHARDS, list(self.head.parameters()), "mean")
        return loss_of(self, x, y)

    below = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())
    engine = job.engine(job.model(forward, below=below, head=nn.Linear(16, 1, bias=False)))
    for step in range(4):
        job.train(engine, step, lambda batch: engine(*batch))
