"""WarmupCosineLR: after `total_num_steps` the learning rate rises again, up to its maximum.

Why: through 0.19.2 WarmupCosineLR computes the cosine beyond `total_num_steps`: the learning rate climbs back to its
    maximum within as many steps as it fell, then falls again. Jobs that train a few more steps than planned, or resume
    for another epoch, get there. With `total_num_steps` equal to `warmup_num_steps` the first step after the warm-up is
    a ZeroDivisionError, and with less the rate begins somewhere on that curve.
How: progress on the cosine ends at `total_num_steps`: from there on the rate is `cos_min_ratio` of the maximum, as in
    upstream's fix.
Changes: steps after `total_num_steps` are made at the final rate instead of a rising one, also when a job resumes there
    from a checkpoint written without the patch. Steps before keep their rates to the bit.
Workaround: Scripts set the learning rate of the steps after `total_num_steps` themselves, or make that number larger.
    You can keep it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PAST = "math.pi * real_last_step / real_total_steps"
_ENDS = "math.pi * min(real_last_step, max(1, real_total_steps)) / max(1, real_total_steps)"
_RATIO = "deepspeed.runtime.lr_schedules:WarmupCosineLR.get_lr_ratio"

PATCH = Patch(
    title="WarmupCosineLR: after total_num_steps the learning rate rises again to its maximum",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.3,<0.19.3"},
    changes=(
        Edit(
            _RATIO,
            replace=_PAST,
            code=_ENDS,
            effect="after total_num_steps the learning rate stayed at its final value (unpatched: it rises again)",
            when=f"real_total_steps == 0 or ratio_delta != 0 and math.cos({_PAST}) != math.cos({_ENDS})",
        ),
    ),
    symptom=r"in get_lr_ratio\n(.*\n){1,3}ZeroDivisionError: (float )?division by zero",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8142": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    fixed=(Source(_RATIO, "min(1.0, real_last_step / real_total_steps)"),),
)

_RATE = 0.1
_WARMUP, _TOTAL, _STEPS = 2, 4, 8
_LEAST = 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    schedules = lab.deepspeed.runtime.lr_schedules
    if not hasattr(schedules, "WarmupCosineLR"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no WarmupCosineLR")
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def share(iteration: int, progress: Callable[[float], float]) -> float:
        """The schedule is stepped after the optimizer: -1 in the first step, whose rate differs between releases."""
        if iteration < _WARMUP:
            return max(iteration, 0) / _WARMUP
        cosine = (1 + math.cos(math.pi * progress((iteration - _WARMUP + 1) / (_TOTAL - _WARMUP)))) / 2
        return _LEAST + (1 - _LEAST) * cosine

    def plain(progress: Callable[[float], float]) -> dict[str, Any]:
        model: Any = lab.models.MLP()
        optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
        for step, (inputs, targets) in enumerate(batches):
            optimizer.param_groups[0]["lr"] = _RATE * share(step - 1, progress)
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def engine(total: int) -> Any:
        model: Any = lab.models.MLP()
        params = {
            "total_num_steps": total,
            "warmup_num_steps": _WARMUP,
            "warmup_type": "linear",
            "cos_min_ratio": _LEAST,
        }
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "scheduler": {"type": "WarmupCosineLR", "params": params},
        }
        made = lab.initialize(model, config, optimizer=torch.optim.SGD(model.parameters(), lr=_RATE))
        for group in made.optimizer.param_groups:  # the first step: see warmup_cosine_first_step
            group["lr"] = 0.0
        return made

    def step(made: Any, number: int) -> None:
        inputs, targets = batches[number]
        outputs = made(inputs.to(lab.device))
        made.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        made.step()

    past = engine(_TOTAL)
    for number in range(_STEPS):
        step(past, number)
    seen = lab.reference.compare(
        lab.parameters(past),
        plain(lambda progress: min(1.0, progress)),
        {"those of a rate that rises again": plain(lambda progress: progress)},
        within=1e-5,
        after=f"after {_STEPS} steps of a schedule of {_TOTAL}",
    )

    warmup_only = engine(_WARMUP)
    try:
        for number in range(_WARMUP + 2):
            step(warmup_only, number)
    except ZeroDivisionError as error:
        if traceback.extract_tb(error.__traceback__)[-1].name == "get_lr_ratio":
            raise BugPresent(f"in get_lr_ratio: {error}") from error
        raise
    rate = warmup_only.get_lr()[0]
    if not math.isclose(rate, _RATE * _LEAST):
        raise AssertionError(f"after a warm-up that fills the schedule the rate is {rate}, not {_RATE * _LEAST}")
    return f"{seen}; a schedule of nothing but warm-up ends at the least rate"
