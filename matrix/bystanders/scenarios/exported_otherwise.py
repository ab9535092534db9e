"""A checkpoint's fp32 weights, exported in other ways than into a file, or with buffers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import exported

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _saved(job: Job, model: Any) -> Any:
    engine = job.engine(model)
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    if not job.plain:
        job.torch.distributed.barrier()
    return engine


@scenario(
    "the fp32 weights of a checkpoint are read into a dict, without a file",
    pinned=[{"stage": "2"}],
    stage="123",
    works_around=("zero_to_fp32_uninitialized",),
)
def exported_into_a_dict(job: Job) -> None:
    engine = _saved(job, job.MLP())
    written: Any = {}
    if job.plain:
        written = job.parameters(engine)
    elif job.rank == 0:
        read = importlib.import_module("deepspeed.utils.zero_to_fp32").get_fp32_state_dict_from_zero_checkpoint
        written = read(str(job.tmp / "checkpoint"), tag="two")
    for name, weight in sorted(written.items()):
        job.note(f"read: {name}", weight)
    job.train(engine, 2)


@scenario("the fp32 weights of a model with floating-point buffers are exported", pinned=[{"stage": "2"}], stage="123")
def exported_with_buffers(job: Job) -> None:
    job.torch.manual_seed(0)
    nn = job.torch.nn
    model = job.model(
        lambda self, x: self.head(self.body(x).tanh() * self.scale.to(x.dtype)),
        body=nn.Linear(16, 16),
        head=nn.Linear(16, 1),
    )
    model.register_buffer("scale", job.torch.arange(16) / 16)
    model.register_buffer("unused", job.torch.ones(3, dtype=job.torch.float64))
    engine = _saved(job, model)
    written: Any = {}
    if job.plain:
        written = {**job.parameters(engine), **dict(engine.module.named_buffers())}
    elif job.rank == 0:
        written = exported._converted(job)
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", weight)
        if not job.plain:
            job.bits(f"dtype of {name}", str(weight.dtype))
    job.train(engine, 2)
