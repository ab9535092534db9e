"""DeepSpeed's 1-bit LAMB on one rank, which compresses nothing, before its freeze_step and behind it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_PARAMS = {"lr": 1e-3, "weight_decay": 0.01}
_FITS: Any = {
    "reference": False,
    "stage": "0",
    "precision": ("fp32",),
    "ranks": ("1",),
    "optimizer": ("SGD",),
}


def _trained(job: Job, freeze_step: int, empty: bool, steps: int = 5) -> None:
    torch = job.torch
    sys.modules.setdefault("cupy", ModuleType("cupy"))  # nothing of it is used but its name
    model = job.MLP()
    if empty:
        model = job.model(lambda self, x: self.body(x) + self.nothing.sum(), body=model)  # type: ignore[assignment,unused-ignore]
        model.register_parameter("nothing", torch.nn.Parameter(torch.ones(0, 8)))
    whole = {
        **space.config(job.setting),
        "optimizer": {"type": "OneBitLamb", "params": {**_PARAMS, "freeze_step": freeze_step}},
    }
    initial = job._whole(model)
    engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
    job._initial[id(engine)] = initial
    for step in range(steps):
        job.train(engine, step)


@scenario("1-bit LAMB", pinned=[{"ranks": "1"}], **_FITS)
def onebit_lamb(job: Job) -> None:
    _trained(job, 3, empty=False)


@scenario("1-bit LAMB before its freeze_step, with a parameter without elements", pinned=[{"ranks": "1"}], **_FITS)
def onebit_lamb_uncompressed(job: Job) -> None:
    _trained(job, 100, empty=True)


@scenario("1-bit LAMB with a parameter without elements", pinned=[{"ranks": "1"}], **_FITS)
def onebit_lamb_with_nothing(job: Job) -> None:
    _trained(job, 3, empty=True)
