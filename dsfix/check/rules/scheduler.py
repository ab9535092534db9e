"""The learning rate scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ...job import AUTO
from ...rules import Found, Level, Rule
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


def _unknown(facts: Facts) -> Iterator[Found]:
    name = facts.block("scheduler").get("type")
    if isinstance(name, str) and name not in (*facts.known.schedulers, *_TORCH):
        near = nearest(name, [*facts.known.schedulers, *_TORCH])
        hint = f"; did you mean {near}?" if near else ""
        yield Found("scheduler.type", f'"{name}" is a scheduler of neither this release nor torch{hint}')


def _incomplete(facts: Facts) -> Iterator[Found]:
    scheduler = facts.block("scheduler")
    name = scheduler.get("type")
    if name is not None and not isinstance(scheduler.get("params"), dict):
        yield Found("scheduler.params", f"missing, required by {name} even if empty: DeepSpeed raises a TypeError")
        return
    for key in _REQUIRED.get(str(name), ()):
        if key not in facts.block("scheduler", "params"):
            yield Found(f"scheduler.params.{key}", f"missing, required by {name}: DeepSpeed raises a TypeError")


def _warmup_steps(facts: Facts) -> Iterator[Found]:
    value = facts.block("scheduler", "params").get("warmup_num_steps", 1)
    if facts.block("scheduler").get("type") not in ("WarmupLR", "WarmupDecayLR") or value == AUTO:
        return
    if not isinstance(value, int) or value <= 0:
        what = f"must be a positive integer, got {value}: DeepSpeed raises a ValueError"
        yield Found("scheduler.params.warmup_num_steps", what)


def _warmup_to_default(facts: Facts) -> Iterator[Found]:
    scheduler = facts.block("scheduler")
    name, params = scheduler.get("type"), facts.block("scheduler", "params")
    rate = None if "optimizer" in facts.arguments else facts.block("optimizer", "params").get("lr")
    if name == "WarmupLR" and facts.release >= _WARMUP_TO_OWN:
        return
    if name not in ("WarmupLR", "WarmupDecayLR") or "warmup_max_lr" in params or not is_number(rate):
        return
    if rate != _WARMUP_MAX_LR:
        what = f"missing: {name} warms up to {_WARMUP_MAX_LR}, not to the optimizer's lr of {rate}"
        yield Found("scheduler.params.warmup_max_lr", what)


def _cycle_lists(facts: Facts) -> Iterator[Found]:
    params = facts.block("scheduler", "params")
    if facts.block("scheduler").get("type") == "OneCycle" and "scheduler" not in facts.arguments:
        for key in ("cycle_min_lr", "cycle_max_lr"):
            if isinstance(params.get(key), list):
                what = "a list, as documented, but this release computes with one number: the first step fails"
                yield Found(f"scheduler.params.{key}", what)


def _step_size(facts: Facts) -> Iterator[Found]:
    key = {"LRRangeTest": "lr_range_test_step_size", "OneCycle": "cycle_first_step_size"}.get(
        str(facts.block("scheduler").get("type"))
    )
    value = facts.block("scheduler", "params").get(key or "")
    if key and is_number(value) and value == 0 and "scheduler" not in facts.arguments:
        effect = "DeepSpeed rejects it" if facts.release >= _STEP_SIZES_REJECTED else "ZeroDivisionError"
        yield Found(f"scheduler.params.{key}", f"must be positive, got {value}: {effect}")


def _passed_in_vain(facts: Facts) -> Iterator[Found]:
    passed, name = facts.arguments.get("scheduler"), facts.block("scheduler").get("type")
    if passed is not None and name is not None:
        yield Found("scheduler", f"{name} is used, and the {passed} that the script passes is not, without a message")


RULES = (
    Rule(
        id="unknown_scheduler",
        level=Level.ERROR,
        find=_unknown,
        remedy="use an existing one, e.g. WarmupDecayLR",
        evidence=("run: 0.14.2 to 0.19.8: DeepSpeed does not recognize LR scheduler",),
    ),
    Rule(
        id="incomplete_scheduler",
        level=Level.ERROR,
        find=_incomplete,
        remedy='add it; transformers and accelerate fill in "auto", but not missing keys',
        evidence=("run: 0.14.2 to 0.19.8: TypeError, missing required positional argument",),
    ),
    Rule(
        id="warmup_steps_not_positive",
        level=Level.ERROR,
        affects={"deepspeed": ">=0.19.3"},
        find=_warmup_steps,
        remedy="set a positive integer, or remove the scheduler",
        evidence=("the source of 0.19.2 and 0.19.3: ValueError",),
    ),
    Rule(
        id="one_cycle_lists",
        level=Level.ERROR,
        affects={"deepspeed": "<0.19.6"},
        find=_cycle_lists,
        remedy="give one number for all groups, or upgrade to DeepSpeed 0.19.6 or later",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8201", "run: 0.12.0, 0.19.5, 0.19.6"),
    ),
    Rule(
        id="scheduler_step_size_zero",
        level=Level.ERROR,
        find=_step_size,
        remedy="set a positive number of steps",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8166", "run: 0.12.0, 0.19.3, 0.19.5"),
    ),
    Rule(
        id="passed_scheduler_unused",
        level=Level.WARNING,
        affects={"deepspeed": "<0.14.5"},
        find=_passed_in_vain,
        remedy="remove the one that is not wanted; since 0.14.5 the script's wins",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/5846", "the source of 0.12.0, 0.14.4 and 0.14.5"),
    ),
    Rule(
        id="warmup_to_default_rate",
        level=Level.WARNING,
        find=_warmup_to_default,
        remedy="set it to the optimizer's lr",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/7360: since 0.17.2 WarmupLR uses the optimizer's lr",
            "the source of 0.12.0 and 0.19.8: 0.001 is the documented default of WarmupDecayLR",
        ),
    ),
)
