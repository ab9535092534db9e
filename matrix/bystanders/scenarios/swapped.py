"""torch swaps tensors where it converts a module, which it refuses for those that a weak reference points to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("torch is to swap the parameters of a module that is converted", stage="012", pinned=[{"stage": "1"}])
def parameters_swapped(job: Job) -> None:
    future = job.torch.__future__
    future.set_swap_module_params_on_conversion(True)
    try:
        engine = job.engine(job.MLP())
        for step in range(3):
            job.train(engine, step)
    finally:
        future.set_swap_module_params_on_conversion(False)
