"""OneCycle: cycle_first_stair_count and cycle_second_stair_count have no effect.

Why: the schedule stores both counts and never uses them: the learning rate and the momentum change in each step instead
    of in as many stairs as the config asks for. Nothing fails.
How: within a cycle, the fraction of the way to the maximum is rounded down to a stair, as in 0.19.4 and later; it is
    computed from the number of the step, so that a stair begins at its first step. Without counts (0, the default)
    nothing changes, nor does the decay after the cycle.
Changes: jobs with OneCycle and a stair count above 0: learning rate and momentum follow stairs, as in 0.19.4 and later.
    One that resumes from a checkpoint written without the patch jumps to the stair below; `DSFIX_SKIP=one_cycle_stairs`
    keeps the ramp until the run is done.
Workaround: Scripts use another schedule, such as torch's LambdaLR. You can keep it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_FACTOR = "deepspeed.runtime.lr_schedules:OneCycle._get_scale_factor"


def on_stairs(schedule: Any, factor: float) -> float:
    """The factor of the schedule's current step, rounded down to a stair if it has a count of them."""
    place = (schedule.last_batch_iteration + 1) % schedule.total_size
    first = schedule.total_size * schedule.step_ratio
    rising = place <= first + 1e-6
    stairs = (schedule.first_stair_count if rising else schedule.second_stair_count) or 0
    if stairs <= 0:
        return factor
    way = place / first if rising else (schedule.total_size - place) / (schedule.total_size - first)
    if not math.isclose(math.floor(way * stairs + 1e-9) / stairs, factor, abs_tol=1e-9):
        took_effect(__name__, "learning rate and momentum followed OneCycle's stairs")
    return math.floor(way * stairs + 1e-9) / stairs


def _meets(job: Job) -> bool:
    if job.get("scheduler", "type") != "OneCycle":
        return False
    return any(job.number("scheduler", "params", f"cycle_{half}_stair_count") > 0 for half in ("first", "second"))


PATCH = Patch(
    title="OneCycle ignores cycle_first_stair_count and cycle_second_stair_count",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.4"},
    changes=(
        Edit(
            _FACTOR,
            before="return scale_factor",
            code="scale_factor = on_stairs(self, scale_factor)",
            uses=(on_stairs,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8179": "fixed in 0.19.4"},
    fixed_in="0.19.4",
    fixed=(Source(_FACTOR, "stair_count = self.first_stair_count"),),
    config=_meets,
)

_LOW, _HIGH, _FIRST, _SECOND = 0.01, 0.09, 4, 6
_STEPS = 9
# the schedule is stepped after the optimizer: two stairs up in 4 steps, three down in 6
_STAIRS = (0.0, 0.0, 1 / 2, 1 / 2, 1.0, 2 / 3, 2 / 3, 1 / 3, 1 / 3)
_RAMP = (0.0, 1 / 4, 2 / 4, 3 / 4, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def plain(shares: tuple[float, ...]) -> dict[str, Any]:
        model = lab.models.MLP()
        rates = [_LOW + (_HIGH - _LOW) * share for share in shares]
        return lab.reference.train(
            model, [[batch] for batch in batches], model.loss, "SGD", lr=0.0, rates=rates
        ).parameters

    model = lab.models.MLP()
    params = {
        "cycle_min_lr": _LOW,
        "cycle_max_lr": _HIGH,
        "cycle_first_step_size": _FIRST,
        "cycle_second_step_size": _SECOND,
        "cycle_first_stair_count": 2,
        "cycle_second_stair_count": 3,
        "cycle_momentum": False,
    }
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LOW}},
        "scheduler": {"type": "OneCycle", "params": params},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        outputs = engine(inputs.to(lab.device))
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        plain(_STAIRS),
        {"those of a learning rate that changes in each step": plain(_RAMP)},
        within=1e-5,
        after=f"after {_STEPS} steps of 2 stairs up and 3 down",
    )
