"""Copies of the engine's module, as for a moving average of the weights."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("the engine's module is copied between two steps, where that is possible, and training goes on", stage="3")
def module_copied(job: Job) -> None:
    engine = job.engine(job.MLP())
    twin = None
    for step in range(4):
        job.train(engine, step)
        if step == 1:
            try:
                twin = copy.deepcopy(engine.module)
            except TypeError as error:
                job.survived("copy", error)
    if twin is not None and not job.plain:
        job.bits("parameters of the copy", repr([name for name, _ in twin.named_parameters()]))
