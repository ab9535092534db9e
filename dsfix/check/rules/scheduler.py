"""The learning rate scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ...job import AUTO
from ...rules import Match, error, warning
from ..facts import Facts, is_number
from ..keys import nearest

_TORCH = (
    *("ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR"),
    *("ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR"),
    *("PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"),
)
_WARMUP_MAX_LR = 0.001
_WARMUP_TO_OWN = Version("0.17.2")  # the first release whose WarmupLR warms up to the optimizer's lr
_STEP_SIZES_REJECTED = Version("0.19.4")
_REQUIRED = {
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
}


@error("use an existing one, e.g. WarmupDecayLR", "run: 0.14.2 to 0.19.8: DeepSpeed does not recognize LR scheduler")
def unknown_scheduler(facts: Facts) -> Iterator[Match]:
    name = facts.block("scheduler").get("type")
    if isinstance(name, str) and name not in (*facts.known.schedulers, *_TORCH):
        near = nearest(name, [*facts.known.schedulers, *_TORCH])
        hint = f"; did you mean {near}?" if near else ""
        yield Match("scheduler.type", f'"{name}" is a scheduler of neither this release nor torch{hint}')


@error(
    'add it; transformers and accelerate fill in "auto", but not missing keys',
    "run: 0.14.2 to 0.19.8: TypeError, missing required positional argument",
)
def incomplete_scheduler(facts: Facts) -> Iterator[Match]:
    scheduler = facts.block("scheduler")
    name = scheduler.get("type")
    if name is not None and not isinstance(scheduler.get("params"), dict):
        yield Match("scheduler.params", f"missing, required by {name} even if empty: DeepSpeed raises a TypeError")
        return
    for key in _REQUIRED.get(str(name), ()):
        if key not in facts.block("scheduler", "params"):
            yield Match(f"scheduler.params.{key}", f"missing, required by {name}: DeepSpeed raises a TypeError")


@error(
    "set a positive integer, or remove the scheduler",
    "the source of 0.19.2 and 0.19.3: ValueError",
    affects={"deepspeed": ">=0.19.3"},
)
def warmup_steps_not_positive(facts: Facts) -> Iterator[Match]:
    value = facts.block("scheduler", "params").get("warmup_num_steps", 1)
    if facts.block("scheduler").get("type") not in ("WarmupLR", "WarmupDecayLR") or value == AUTO:
        return
    if not isinstance(value, int) or value <= 0:
        what = f"must be a positive integer, got {value}: DeepSpeed raises a ValueError"
        yield Match("scheduler.params.warmup_num_steps", what)


@warning(
    "set it to the optimizer's lr",
    "#7360: since 0.17.2 WarmupLR uses the optimizer's lr",
    "the source of 0.12.0 and 0.19.8: 0.001 is the documented default of WarmupDecayLR",
)
def warmup_to_default_rate(facts: Facts) -> Iterator[Match]:
    scheduler = facts.block("scheduler")
    name, params = scheduler.get("type"), facts.block("scheduler", "params")
    rate = None if "optimizer" in facts.arguments else facts.block("optimizer", "params").get("lr")
    if name == "WarmupLR" and facts.release >= _WARMUP_TO_OWN:
        return
    if name not in ("WarmupLR", "WarmupDecayLR") or "warmup_max_lr" in params or not is_number(rate):
        return
    if rate != _WARMUP_MAX_LR:
        what = f"missing: {name} warms up to {_WARMUP_MAX_LR}, not to the optimizer's lr of {rate}"
        yield Match("scheduler.params.warmup_max_lr", what)


@error(
    "give one number for all groups, or upgrade to DeepSpeed 0.19.6 or later",
    "#8201",
    "run: 0.12.0, 0.19.5, 0.19.6",
    affects={"deepspeed": "<0.19.6"},
)
def one_cycle_lists(facts: Facts) -> Iterator[Match]:
    params = facts.block("scheduler", "params")
    if facts.block("scheduler").get("type") == "OneCycle" and "scheduler" not in facts.arguments:
        for key in ("cycle_min_lr", "cycle_max_lr"):
            if isinstance(params.get(key), list):
                what = "a list, as documented, but this release expects one number: the first step fails"
                yield Match(f"scheduler.params.{key}", what)


@error("set a positive number of steps", "#8166", "run: 0.12.0, 0.19.3, 0.19.5")
def scheduler_step_size_zero(facts: Facts) -> Iterator[Match]:
    key = {"LRRangeTest": "lr_range_test_step_size", "OneCycle": "cycle_first_step_size"}.get(
        str(facts.block("scheduler").get("type"))
    )
    value = facts.block("scheduler", "params").get(key or "")
    if key and is_number(value) and value == 0 and "scheduler" not in facts.arguments:
        effect = "DeepSpeed rejects it" if facts.release >= _STEP_SIZES_REJECTED else "ZeroDivisionError"
        yield Match(f"scheduler.params.{key}", f"must be positive, got {value}: {effect}")


@warning(
    "remove the one that you do not want; since 0.14.5 the script's takes precedence",
    "#5846",
    "the source of 0.12.0, 0.14.4 and 0.14.5",
    affects={"deepspeed": "<0.14.5"},
)
def passed_scheduler_unused(facts: Facts) -> Iterator[Match]:
    passed, name = facts.arguments.get("scheduler"), facts.block("scheduler").get("type")
    if passed is not None and name is not None:
        yield Match("scheduler", f"{name} is used, and the {passed} that the script passes is silently ignored")
