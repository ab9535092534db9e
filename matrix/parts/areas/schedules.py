"""Schedules: the rates and momenta of each step by the formulas of their documentation; a resumed one goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsfix.lab.session import Lab
from dsfix.versions import satisfies
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public

_FORMULAS = "https://deepspeed.readthedocs.io/en/latest/schedulers.html"
Options = Mapping[str, Any]
_BETAS = (0.9, 0.95)


def _warmup(options: Options, step: int, low: float, high: float) -> float:
    size = max(2, options["warmup_num_steps"])
    if step >= size:
        return high
    gone = math.log(step + 1) / math.log(size) if options["warmup_type"] == "log" else step / size
    return low + (high - low) * gone


def _warmup_lr(options: Options, step: int, rate: float) -> float:
    return _warmup(options, step, options["warmup_min_lr"], options["warmup_max_lr"])


def _warmup_decay(options: Options, step: int, rate: float) -> float:
    size, total = max(2, options["warmup_num_steps"]), options["total_num_steps"]
    if step < size:
        return _warmup_lr(options, step, rate)
    low, high = options["warmup_min_lr"], options["warmup_max_lr"]
    return low + (high - low) * max(0.0, (total - step) / max(1.0, total - size))


def _warmup_cosine(options: Options, step: int, rate: float) -> float:
    size = max(2, options["warmup_num_steps"])
    if step < size:
        return rate * _warmup(options, step, options["warmup_min_ratio"], 1.0)
    gone = min(1.0, (step - size + 1) / max(1, options["total_num_steps"] - size))
    return rate * (options["cos_min_ratio"] + (1 - options["cos_min_ratio"]) * (1 + math.cos(math.pi * gone)) / 2)


def _range_test(options: Options, step: int, rate: float) -> float:
    gone = (step + 1) / options["lr_range_test_step_size"]
    gone = math.floor(gone) if options["lr_range_test_staircase"] else gone
    return options["lr_range_test_min_lr"] * (1 + options["lr_range_test_step_rate"] * gone)


def _share(options: Options, step: int) -> float:
    """Of the way from the minimum to the maximum, within the cycle."""
    first = options["cycle_first_step_size"]
    second = options["cycle_second_step_size"] or first
    up, down = options["cycle_first_stair_count"], options["cycle_second_stair_count"]
    at = (step + 1) % (first + second)
    stairs = up if at <= first or down is None else down
    position = at / first if at <= first else (first + second - at) / second
    return math.floor(position * stairs + 1e-9) / stairs if stairs else position


def _cycle(options: Options, step: int, rate: float) -> float:
    total = options["cycle_first_step_size"] + (options["cycle_second_step_size"] or options["cycle_first_step_size"])
    low, high = options["cycle_min_lr"], options["cycle_max_lr"]
    if step < total:
        return low + (high - low) * _share(options, step)
    if not options["decay_step_size"]:
        return low
    return low / (1 + options["decay_lr_rate"] * (step - total + 1) / options["decay_step_size"])


def _cycle_momentum(options: Options, step: int) -> float:
    total = options["cycle_first_step_size"] + (options["cycle_second_step_size"] or options["cycle_first_step_size"])
    low, high = options["cycle_min_mom"], options["cycle_max_mom"]
    if step < total:
        return high - (high - low) * _share(options, step)
    if not options["decay_step_size"]:
        return high
    return high * (1 + options["decay_mom_rate"] * (step - total + 1) / options["decay_step_size"])


def _warm(draw: Draw) -> dict[str, Any]:
    return {"warmup_num_steps": draw.integer("warmup_num_steps", 1, 6), "warmup_type": draw("type", ("log", "linear"))}


def _rates(draw: Draw) -> dict[str, Any]:
    return {"warmup_min_lr": draw.number("min", 0, 0.1), "warmup_max_lr": draw.number("max", 0, 0.1)}


_OPTIONS: Mapping[str, tuple[Callable[[Draw], dict[str, Any]], Callable[[Options, int, float], float]]] = {
    "WarmupLR": (lambda draw: {**_rates(draw), **_warm(draw)}, _warmup_lr),
    "WarmupDecayLR": (
        lambda draw: {**_rates(draw), **_warm(draw), "total_num_steps": draw.integer("total", 1, 9)},
        _warmup_decay,
    ),
    "WarmupCosineLR": (
        lambda draw: {
            **_warm(draw),
            "total_num_steps": draw.integer("total", 1, 9),
            "warmup_min_ratio": draw.number("min", 0, 1),
            "cos_min_ratio": draw.number("end", 0, 1),
        },
        _warmup_cosine,
    ),
    "LRRangeTest": (
        lambda draw: {
            "lr_range_test_min_lr": draw.number("min", 0.001, 0.1),
            "lr_range_test_step_size": draw.integer("size", 1, 4),
            "lr_range_test_step_rate": draw.number("rate", 0, 2),
            "lr_range_test_staircase": draw.flag("staircase"),
        },
        _range_test,
    ),
    "OneCycle": (
        lambda draw: {
            "cycle_min_lr": draw.number("min", 0.001, 0.01),
            "cycle_max_lr": draw.number("max", 0.01, 0.1),
            "decay_lr_rate": draw.number("decay", 0, 1),
            "cycle_first_step_size": draw.integer("first", 1, 4),
            "cycle_second_step_size": draw("second", (None, 1, 2, 3)),
            "cycle_first_stair_count": draw("stairs up", (0, 1, 2)),
            "cycle_second_stair_count": draw("stairs down", (None, 0, 1, 2)),
            "decay_step_size": draw("decay every", (0, 1, 2)),
            "cycle_momentum": draw.flag("cycle_momentum"),
            "cycle_min_mom": draw.number("min momentum", 0.7, 0.8),
            "cycle_max_mom": draw.number("max momentum", 0.8, 0.9),
            "decay_mom_rate": draw.number("decay of momentum", 0, 0.01),
        },
        _cycle,
    ),
}


def _schedule(name: str) -> Callable[[Lab, Draw], None]:
    def check(lab: Lab, draw: Draw) -> None:
        kind = public(f"runtime.lr_schedules:{name}")
        drawn, formula = _OPTIONS[name]
        options = drawn(draw)
        tensor = draw.flag("rates are tensors")
        bases = (0.05, 0.02)[: draw.integer("groups", 1, 2)]

        def made() -> tuple[Any, Any]:
            rates: list[Any] = [torch.tensor(each) if tensor else each for each in bases]
            weights = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
            optimizer = torch.optim.Adam(weights, betas=_BETAS, foreach=False, capturable=tensor)
            return optimizer, kind(optimizer, **options)

        optimizer, schedule = made()
        resumed = draw.integer("resumed before step", 0, 9)
        for step in range(10):
            if step == resumed:
                before, state = optimizer.state_dict(), schedule.state_dict()
                optimizer, schedule = made()
                optimizer.load_state_dict(before)
                schedule.load_state_dict(state)
            schedule.step()
            for number, (group, base) in enumerate(zip(optimizer.param_groups, bases)):
                wanted = formula(options, step, base)
                same(float(group["lr"]), wanted, f"rate of group {number} at step {step}")
                same(float(schedule.get_last_lr()[number]), wanted, f"get_last_lr() at step {step}")
                momentum = _BETAS[0]
                if options.get("cycle_momentum"):
                    momentum = _cycle_momentum(options, step)
                same(list(map(float, group["betas"])), [momentum, _BETAS[1]], f"betas at step {step}")

    return check


for _name in _OPTIONS:
    part(f"schedules/{_name}", f"its formula: {_FORMULAS}", examples=120)(_schedule(_name))


@part("schedules/DynamicLossScaler", "its documentation: halved on overflow, doubled after a window", examples=150)
def _loss_scale(lab: Lab, draw: Draw) -> None:
    window, least = draw.integer("window", 1, 4), draw("min_scale", (0.25, 1.0))
    shift, refilled = draw.integer("hysteresis", 1, 3), draw.flag("consecutive")
    kind = public("runtime.fp16.loss_scaler:DynamicLossScaler")
    options = {"init_scale": 8.0, "scale_window": window, "min_scale": least, "delayed_shift": shift}
    scaler = kind(**options, consecutive_hysteresis=refilled, raise_error_at_min_scale=False, dtype=torch.half)
    later = int(satisfies(">=0.17.1", lab.deepspeed.__version__))  # a step more than the window
    scale, left, since = 8.0, shift, 0
    for step in range(14):
        overflow = draw.flag(f"{step}")
        scaler.update_scale(overflow)
        if overflow:
            scale, left, since = (max(scale / 2, least), left, 0) if left == 1 else (scale, left - 1, 0)
        else:
            left, since = shift if refilled else left, since + 1
            if since > later and (since - later) % window == 0:
                scale, left = scale * 2, shift
        same(scaler.cur_scale, scale, f"scale at step {step}")
