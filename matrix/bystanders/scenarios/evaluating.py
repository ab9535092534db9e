"""Evaluating the weights of checkpoints with a different precision or optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {"stage": "0", "precision": ("bf16",), "pinned": [{"precision": "bf16"}]}


def _evaluated(job: Job, engine: Any) -> None:
    with job.torch.no_grad():
        for number in range(2):
            job.note(f"loss {number}", job.loss(engine, job.batch(1000 + number)))


@scenario("the weights of an fp32 checkpoint are evaluated in bf16", **_FITS)
def fp32_evaluated_in_bf16(job: Job) -> None:
    engine = job.engine(job.MLP(), bf16={"enabled": False})
    dtype, job.dtype = job.dtype, job.torch.float32
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    job.dtype = dtype
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "two")
    _evaluated(job, engine)


@scenario("the weights of a checkpoint are evaluated by an engine with different groups", **_FITS)
def evaluated_with_other_groups(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    model = job.MLP(seed=1)
    engine = job.engine(model, [{"params": list(part.parameters())} for part in (model.blocks, model.head)])
    job.load(engine, "two", optimizer=not job.plain)
    _evaluated(job, engine)
