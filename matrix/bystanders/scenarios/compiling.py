"""torch.compile of the whole model, by the script and by the engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


# with ZeRO-3 its hooks are recompiled for half a minute
_FITS: Any = {"stage": "012", "accumulation": ("1", "2")}


def _tolerant() -> None:
    """torch 2.13 cannot trace torch.cuda.synchronize(None), which the engine's hook before a forward pass calls."""
    importlib.import_module("torch._dynamo").config.suppress_errors = True


@scenario("the engine compiles the whole model", pinned=[{"stage": "1"}], **_FITS)
def compiled_by_engine(job: Job) -> None:
    _tolerant()
    engine = job.engine(job.MLP())
    engine.compile(backend="eager")
    for step in range(3):
        job.train(engine, step)


@scenario("the model is compiled before the engine is created", **_FITS)
def compiled_before(job: Job) -> None:
    _tolerant()
    model = job.MLP()
    model.compile(backend="eager")
    engine = job.engine(model)
    for step in range(3):
        job.train(engine, step)
