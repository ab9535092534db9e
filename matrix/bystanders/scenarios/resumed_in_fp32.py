"""Jobs in fp32 without ZeRO that resume from checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {"stage": "0", "precision": ("fp32",)}


@scenario(
    "a job in fp32 without ZeRO resumes, and its successor resumes again",
    pinned=[{"accumulation": "2"}, {"ranks": "1"}, {}, {"ranks": "1", "accumulation": "2", "optimizer": "AdamW"}],
    **_FITS,
)
def resumed_twice_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(6):
        if step in (2, 4):
            job.save(engine, f"step{step}")
            engine = job.engine(job.MLP(seed=step))
            job.load(engine, f"step{step}")
            job.look(engine, f"loaded before step {step}")
        job.train(engine, step)


@scenario(
    "in fp32 without ZeRO the weights alone are loaded, then with what else there is, then all",
    pinned=[{"optimizer": "AdamW"}, {"ranks": "1", "accumulation": "2", "optimizer": "client's AdamW"}],
    **_FITS,
)
def loaded_in_parts_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "two", module_only=True)
    job.look(engine, "the weights")
    job.train(engine, 2)
    job.load(engine, "two", optimizer=False)
    job.look(engine, "without the optimizer")
    job.train(engine, 3)
    job.load(engine, "two")
    job.look(engine, "all")
    for step in range(4, 6):
        job.train(engine, step)
