"""ZeRO-3 with DeepSpeed's FusedAdam, whose states and weights are moved to the host and back between two steps."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsfix.lab import half
from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HERE: Any = {"stage": "3", "offload": ("none",), "optimizer": ("client's AdamW",)}
_PINNED = [{"stage": "3", "optimizer": "client's AdamW"}]


def _train(job: Job, model: Any, parameters: list[Any]) -> None:
    def fused(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    engine = job.engine(model, parameters, optimizer=fused)
    for step in range(3):
        job.train(engine, step)
        if not job.plain:
            engine.offload_states()
            engine.reload_states()
        job.look(engine, f"after step {step}")


@scenario("ZeRO-3 with FusedAdam is moved to the host and back", pinned=_PINNED, **_HERE)
def zero3_moved_and_back(job: Job) -> None:
    model = job.MLP()
    _train(job, model, list(model.parameters()))


@scenario("ZeRO-3 with FusedAdam and two groups is moved to the host and back", pinned=_PINNED, **_HERE)
def zero3_moved_and_back_with_groups(job: Job) -> None:
    model = job.MLP()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    _train(job, model, groups)
