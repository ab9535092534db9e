"""Parameters unused in the last micro-batch of a step, where ZeRO-1 reduces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_OVERLAP = {"stage": "1", "overlap_comm": "true", "accumulation": "2"}
_PINNED = [
    _OVERLAP,
    {**_OVERLAP, "precision": "fp16", "optimizer": "client's SGD"},
    {**_OVERLAP, "buckets": "small", "accumulation": "3"},
    {**_OVERLAP, "buckets": "small", "ranks": "4", "optimizer": "AdamW"},
    {**_OVERLAP, "offload": "optimizer", "optimizer": "client's AdamW"},
    {**_OVERLAP, "offload": "optimizer", "ranks": "1", "optimizer": "client's AdamW"},
]


def _train(job: Job, engine: Any, step: int, both: list[bool]) -> None:
    """One optimizer step; `both`: for each micro-batch, whether it uses the second branch."""
    left = iter(both)
    job.train(engine, step, lambda batch: job.loss(engine, batch, next(left)))


@scenario("the last micro-batch does not use a branch that the first one uses", pinned=_PINNED, accumulation=("2", "3"))
def last_leaves_out(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(4):
        _train(job, engine, step, [step != 1] + [step == 2] * (job.accumulation - 1))


@scenario(
    "only the first rank's first micro-batch uses a branch", pinned=_PINNED, stage="1", accumulation=("2", "3"),
    overlap_comm=("true",),
)  # fmt: skip
def one_rank_uses(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(4):
        _train(job, engine, step, [job.rank == 0 and step != 1] + [step == 2] * (job.accumulation - 1))


@scenario("a branch that no micro-batch uses", pinned=_PINNED)
def never_used(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        _train(job, engine, step, [False] * job.accumulation)


@scenario("whole steps that do not use a branch", pinned=_PINNED)
def step_leaves_out(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(4):
        _train(job, engine, step, [step % 2 == 0] * job.accumulation)


@scenario("the script sets the boundary, and the last micro-batch does not use a branch", pinned=_PINNED[:4], stage="1")
def boundary_by_hand(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        for micro in range(3):
            engine.set_gradient_accumulation_boundary(micro == 2)
            value = job.loss(engine, job.batch(3 * step + micro), micro == step % 2)
            engine.backward(value)
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        engine.step()
        job.look(engine, f"step {step}")
