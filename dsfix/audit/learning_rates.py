"""The learning rates of a plan, step by step, by the documented formulas of DeepSpeed's schedulers.

DeepSpeed's schedulers count from -1, the first step, and do not count skipped steps.
Source: https://deepspeed.readthedocs.io/en/latest/schedulers.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dsfix.audit.plan import Plan, Unsupported

Options = Mapping[str, Any]


def rates(plan: Plan, initial: list[float]) -> list[list[float]]:
    """Returns each group's rate by number of steps made. initial: the optimizer's rates. Raises Unsupported."""
    scheduler = plan.config.get("scheduler") or {}
    name, options = scheduler.get("type"), scheduler.get("params") or {}
    if name is None:
        return [list(initial) for _ in range(plan.steps)]
    if name not in _FORMULAS:
        raise Unsupported(f"the audit has no formula for the scheduler {name}; supported: {', '.join(_FORMULAS)}")
    if name == "OneCycle" and options.get("cycle_momentum", True):
        raise Unsupported("the audit does not support OneCycle with changing momentum: set its cycle_momentum to false")
    return [_FORMULAS[name](options, initial, step - 1) for step in range(plan.steps)]


def _warmup(options: Options, iteration: int) -> float:
    """Returns the progress from the low to the high rate, 0 to 1."""
    steps = max(2, options.get("warmup_num_steps", 1000))
    if iteration < 0:
        return 0.0
    if iteration >= steps:
        return 1.0
    linear = options.get("warmup_type", "log") == "linear"
    return iteration / steps if linear else math.log(iteration + 1) / math.log(steps)


def _warmup_lr(options: Options, initial: list[float], iteration: int) -> list[float]:
    low = _each(options.get("warmup_min_lr", 0.0), initial)
    high = _each(options.get("warmup_max_lr", initial), initial)
    return [a + (b - a) * _warmup(options, iteration) for a, b in zip(low, high)]


def _warmup_decay_lr(options: Options, initial: list[float], iteration: int) -> list[float]:
    options = {"warmup_max_lr": 0.001, **options}
    warmup, total = max(2, options.get("warmup_num_steps", 1000)), options["total_num_steps"]
    if iteration < warmup:
        return _warmup_lr(options, initial, iteration)
    low = _each(options.get("warmup_min_lr", 0.0), initial)
    high = _each(options["warmup_max_lr"], initial)
    left = max(0.0, (total - iteration) / max(1.0, total - warmup))
    return [a + (b - a) * left for a, b in zip(low, high)]


def _warmup_cosine_lr(options: Options, initial: list[float], iteration: int) -> list[float]:
    warmup, total = max(2, options.get("warmup_num_steps", 1000)), options["total_num_steps"]
    least, end = options.get("warmup_min_ratio", 0.0), options.get("cos_min_ratio", 0.0001)
    if iteration < 0:
        ratio = 0.0
    elif iteration < warmup:
        ratio = least + (1.0 - least) * _warmup(options, iteration)
    else:
        progress = min(1.0, (iteration - warmup + 1) / max(1, total - warmup))
        ratio = max(0.0, end + (1.0 - end) * (1.0 + math.cos(math.pi * progress)) / 2)
    return [rate * ratio for rate in initial]


def _range_test(options: Options, initial: list[float], iteration: int) -> list[float]:
    low = _each(options.get("lr_range_test_min_lr", 1e-3), initial)
    interval = (iteration + 1) / options.get("lr_range_test_step_size", 2000)
    if options.get("lr_range_test_staircase", False):
        interval = math.floor(interval)
    increase = 1.0 + options.get("lr_range_test_step_rate", 1.0) * interval if iteration >= 0 else 1.0
    return [rate * increase for rate in low]


def _one_cycle(options: Options, initial: list[float], iteration: int) -> list[float]:
    first = options.get("cycle_first_step_size", 2000)
    second = options.get("cycle_second_step_size") or first
    low, high = _each(options["cycle_min_lr"], initial), _each(options["cycle_max_lr"], initial)
    if iteration < 0:
        return low
    if iteration >= first + second:
        decay, size = options.get("decay_lr_rate", 0.0), options.get("decay_step_size", 0)
        fall = 1.0 + decay * (iteration - first - second + 1) / size if decay and size else 1.0
        return [rate / fall for rate in low]
    place = (iteration + 1) % (first + second)
    rising = place <= first
    scale = place / first if rising else (first + second - place) / second
    stairs = options.get("cycle_first_stair_count", 0)
    if not rising and options.get("cycle_second_stair_count") is not None:
        stairs = options["cycle_second_stair_count"]
    if stairs:
        scale = math.floor(scale * stairs + 1e-9) / stairs
    return [a + (b - a) * scale for a, b in zip(low, high)]


def _each(value: Any, initial: list[float]) -> list[float]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * len(initial)


_FORMULAS: Mapping[str, Callable[[Options, list[float], int], list[float]]] = {
    "WarmupLR": _warmup_lr,
    "WarmupDecayLR": _warmup_decay_lr,
    "WarmupCosineLR": _warmup_cosine_lr,
    "LRRangeTest": _range_test,
    "OneCycle": _one_cycle,
}
