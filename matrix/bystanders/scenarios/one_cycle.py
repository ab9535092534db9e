"""DeepSpeed's OneCycle from the config: a ramp up and down, with momentum, and in stairs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_LOW, _HIGH, _FIRST, _SECOND = 0.01, 0.05, 2, 3
_STEPS = 6
_FITS: Any = {"precision": ("fp32", "bf16"), "optimizer": ("SGD", "client's SGD", "AdamW", "client's AdamW")}


def _share(step: int, stairs: int) -> float:
    """Of the way from the lowest to the highest rate; the schedule is stepped after the optimizer."""
    place = step % (_FIRST + _SECOND)
    way = place / _FIRST if place <= _FIRST else (_FIRST + _SECOND - place) / _SECOND
    return math.floor(way * stairs + 1e-9) / stairs if stairs else way


def _trained(job: Job, stairs: int, momentum: bool, resumed: int = 0) -> None:
    params: dict[str, Any] = {
        "cycle_min_lr": _LOW,
        "cycle_max_lr": _HIGH,
        "cycle_first_step_size": _FIRST,
        "cycle_second_step_size": _SECOND,
        "cycle_first_stair_count": stairs,
        "cycle_momentum": momentum,
        "cycle_min_mom": 0.8,
        "cycle_max_mom": 0.9,
    }
    config: Any = {"scheduler": {"type": "OneCycle", "params": params}}
    engine = job.engine(job.MLP(), **config)
    for step in range(_STEPS):
        if resumed and step == resumed:
            job.save(engine, "resumed")
            engine = job.engine(job.MLP(), **config)
            job.load(engine, "resumed")
        if job.plain:
            share = _share(step, stairs)
            for group in engine.optimizer.param_groups:
                group["lr"] = _LOW + (_HIGH - _LOW) * share
                if momentum and "betas" in group:
                    group["betas"] = (0.9 - 0.1 * share if step else 0.8, 0.99)
        job.train(engine, step)


@scenario("a learning rate goes up and down once, and the momentum down and up", pinned=[{"stage": "2"}], **_FITS)
def one_cycle(job: Job) -> None:
    _trained(job, 0, True)


@scenario("a learning rate goes up and down once, and resumes from a checkpoint", pinned=[{"stage": "1"}], **_FITS)
def one_cycle_resumed(job: Job) -> None:
    _trained(job, 0, False, 3)


@scenario("a learning rate goes up and down once, in stairs", pinned=[{"stage": "3"}], **_FITS)
def one_cycle_in_stairs(job: Job) -> None:
    _trained(job, 1, False)
