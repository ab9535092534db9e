"""Inputs of the model that need a gradient on one rank only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Batch, Job


@scenario(
    "a pass without gradients before each backward pass; the input needs a gradient on rank 0 only",
    pinned=[{"stage": "3", "accumulation": "2", "partitioning": "all"}],
    stage="3",
    offload=("none",),
    precision=("fp32",),
    ranks=("2",),
    accumulation=("2",),
    partitioning=("all",),
)
def evaluated_between_by_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch) -> Any:
        inputs, targets = batch
        found = job.loss(engine, (inputs.requires_grad_(job.rank == 0), targets))
        with job.torch.no_grad():
            engine(inputs.detach())
        return found

    for step in range(3):
        job.train(engine, step, loss)
