"""ZeRO-3 whose gradients are averaged in another dtype than the parameters'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HERE: Any = {"stage": "3", "precision": ("bf16", "fp16"), "ranks": ("2",)}
_PINNED = [{"stage": "3", "precision": "bf16", "accumulation": "2"}]


@scenario("ZeRO-3 in half precision, with gradients averaged in fp32", pinned=_PINNED, **_HERE)
def averaged_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), communication_data_type="fp32")
    for step in range(3):
        job.train(engine, step)


@scenario("ZeRO-3 in half precision, with gradients averaged in fp32 by all-reduce", pinned=_PINNED, **_HERE)
def all_reduced_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), communication_data_type="fp32", zero_optimization={"reduce_scatter": False})
    for step in range(3):
        job.train(engine, step)


@scenario("ZeRO-3 in half precision, with gradients averaged and accumulated in fp32", pinned=_PINNED, **_HERE)
def averaged_and_accumulated_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), communication_data_type="fp32", data_types={"grad_accum_dtype": "fp32"})
    for step in range(3):
        job.train(engine, step)
