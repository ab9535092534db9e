"""A job that starts from the weights of a checkpoint that is not the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("a new engine takes the weights, not the optimizer's states, of an earlier checkpoint than the latest")
def weights_of_another_tag(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
        job.save(engine, f"step{step}")
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "step0", optimizer=False)
    job.look(engine, "back")
    for step in range(2, 4):
        job.train(engine, step)
