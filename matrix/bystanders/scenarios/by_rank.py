"""Ranks that do not use the same parameters, with gradients accumulated in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Batch, Job

_HERE: Any = {"stage": "1", "precision": ("bf16, fp32 accumulation",), "ranks": ("2",), "clipping": ("on",)}


@scenario("one of two ranks leaves a branch out", **_HERE)
def branch_of_one_rank(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        job.train(engine, step, lambda batch: job.loss(engine, batch, job.rank == 0))


@scenario("the loss of one of two ranks reaches no parameter", **_HERE)
def rank_without_gradient(job: Job) -> None:
    engine = job.engine(job.MLP())
    apart = job.torch.ones((), device=job.device, requires_grad=True)

    def loss(batch: Batch) -> Any:
        value = job.loss(engine, batch)
        return value if job.rank == 0 else value.detach() * apart

    for step in range(3):
        job.train(engine, step, loss)
