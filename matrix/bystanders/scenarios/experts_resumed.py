"""Experts without ZeRO, whose job resumes from a checkpoint, compared with plain PyTorch that has all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {
    "stage": "0",
    "precision": ("fp32",),
    "ranks": ("2", "4"),
    "accumulation": ("1", "2"),
    "optimizer": ("AdamW",),
}


def _resumed(job: Job, ep_size: int, optimizer: bool = True) -> None:
    from dsfix.lab import experts

    def start() -> tuple[Any, Any]:
        if job.plain:
            model: Any = experts.Mixture()
            return model, job.engine(model)
        model = experts.Sharded(job._lab, ep_size)
        return model, job._lab.initialize(model, space.config(job.setting), model_parameters=model.groups())

    model, engine = start()
    initial = job.parameters(engine) if job.plain else model.named(job.parameters(engine))
    for step in range(4):
        if step == 2:
            job.save(engine, "two")
            model, engine = start()
            job.load(engine, "two", optimizer)
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        now = job.parameters(engine)
        for name, parameter in (now if job.plain else model.named(now)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name])


@scenario("experts on two ranks, resumed without ZeRO", pinned=[{}, {"ranks": "4"}], **_FITS)
def experts_of_two_ranks_resumed(job: Job) -> None:
    _resumed(job, 2)


@scenario("experts on each rank, resumed without ZeRO", pinned=[{}], **_FITS)
def experts_of_each_rank_resumed(job: Job) -> None:
    _resumed(job, 1)


@scenario(
    "experts on two ranks, resumed without ZeRO and without the optimizer's states",
    pinned=[{}],
    works_around=("moe_fp32_resume",),
    **_FITS,
)
def experts_resumed_without_optimizer(job: Job) -> None:
    _resumed(job, 2, optimizer=False)
