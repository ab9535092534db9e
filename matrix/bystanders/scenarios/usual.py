"""What most jobs do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("four plain steps", works_around=("scale_wrt_gas_ignored", "scale_wrt_gas_ignored_without_zero"))
def usual(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        job.train(engine, step)
