"""Gradients that the script reads and sets between backward and step under ZeRO-3."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HERE: Any = {"stage": "3", "accumulation": ("1", "2"), "ranks": ("1", "2")}
_PINNED = [{"stage": "3", "offload": "optimizer", "clipping": "on"}, {"stage": "3", "offload": "optimizer"}]


def _train(job: Job, part: str, factor: float) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        batches = job.batches(step)
        for micro, batch in enumerate(batches):
            engine.backward(job.loss(engine, batch))
            if micro == len(batches) - 1:
                _multiply(job, engine, part, factor)
            engine.step()
        job.look(engine, f"step {step}")


def _multiply(job: Job, engine: Any, part: str, factor: float) -> None:
    for parameter in engine.module.parameters():
        if part == "full" and tuple(getattr(parameter, "ds_shape", parameter.shape)) == (1,):
            continue  # two ranks cannot set it
        if job.plain:
            parameter.grad.mul_(factor)
        else:
            utils = importlib.import_module("deepspeed.utils")
            value = getattr(utils, f"safe_get_{part}_grad")(parameter)
            getattr(utils, f"safe_set_{part}_grad")(parameter, value * factor)


@scenario("each gradient is doubled with safe_set_full_grad()", pinned=_PINNED, **_HERE)
def full_gradients_doubled(job: Job) -> None:
    _train(job, "full", 2.0)


@scenario("each gradient is set to what it is with safe_set_full_grad()", pinned=_PINNED, **_HERE)
def full_gradients_kept(job: Job) -> None:
    _train(job, "full", 1.0)


@scenario("each gradient is doubled with safe_set_local_grad()", pinned=_PINNED, **_HERE)
def local_gradients_doubled(job: Job) -> None:
    _train(job, "local", 2.0)


@scenario("each gradient is set to what it is with safe_set_local_grad()", pinned=_PINNED, **_HERE)
def local_gradients_kept(job: Job) -> None:
    _train(job, "local", 1.0)
