"""ZeRO-3 with a part of the optimizer on the GPU: `offload_optimizer.ratio` below 1."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsfix.lab import half
from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

# one rank: no padding, which nothing initializes
_HERE: Any = {"stage": "3", "offload": ("optimizer",), "optimizer": ("client's AdamW",), "ranks": ("1",)}


def _engine(job: Job, model: Any, parameters: Any = None) -> Any:
    def adam(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        half.provide_cpu_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam(given, **space.ADAM)

    part = {"sub_group_size": 100, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    return job.engine(model, parameters, adam, zero_optimization=part)


@scenario("Twin-Flow at a constant rate", **_HERE)
def twin_flow(job: Job) -> None:
    engine = _engine(job, job.MLP())
    for step in range(4):
        job.train(engine, step)


@scenario("Twin-Flow, two groups at constant rates of their own", **_HERE)
def twin_flow_groups(job: Job) -> None:
    model = job.MLP()
    groups = [
        {"params": list(model.blocks.parameters())},
        {"params": list(model.head.parameters()), "lr": 0.02, "weight_decay": 0.0},
    ]
    engine = _engine(job, model, groups)
    for step in range(4):
        job.train(engine, step)
