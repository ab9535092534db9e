"""Batch sizes: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * processes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...job import AUTO
from ...rules import Match, error, note
from ..facts import Facts, is_number

_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_NAMES = (_TOTAL, _MICRO, _STEPS)


def _elastic(facts: Facts) -> bool:
    """Whether DeepSpeed computes the batch sizes itself."""
    return bool(facts.block("elasticity").get("enabled", False))


def _is_missing(facts: Facts) -> bool:
    return facts.get(_TOTAL) is None and facts.get(_MICRO) is None and not _elastic(facts)


def _unchanged(facts: Facts) -> bool:
    """Whether no size is added before DeepSpeed reads the config: transformers and accelerate add none."""
    return facts.plain or facts.in_job or facts.has_auto or facts.accelerate is not None


@error(f"set {_MICRO}", "run: 0.12.0 to 0.19.8: Either train_batch_size or … needs to be provided")
def no_batch_size(facts: Facts) -> Iterator[Match]:
    if _is_missing(facts) and _unchanged(facts):
        yield Match(_MICRO, f"neither {_TOTAL} nor {_MICRO} is set: DeepSpeed raises an AssertionError")


@note(
    f"set {_MICRO}, if the script does not; --plain: it does not",
    "run: 0.12.0 to 0.19.8",
    "lightning: DeepSpeedStrategy sets train_micro_batch_size_per_gpu",
)
def no_batch_size_in_file(facts: Facts) -> Iterator[Match]:
    if _is_missing(facts) and not _unchanged(facts):
        what = (
            f"neither {_TOTAL} nor {_MICRO} is set: DeepSpeed raises an AssertionError, unless the script adds one, "
            "as Lightning does"
        )
        yield Match(_MICRO, what)


@error("write a positive integer without quotes", "run: 0.12.0 to 0.19.8: TypeError, or AssertionError for 0")
def batch_not_a_number(facts: Facts) -> Iterator[Match]:
    for name in _NAMES:
        value = facts.get(name)
        if isinstance(value, str) and value != AUTO:
            yield Match(name, f'"{value}" is a string: DeepSpeed raises a TypeError that does not name the key')
        elif value is not None and value != AUTO and (not is_number(value) or value <= 0):
            yield Match(name, f"must be a positive number, got {value}")


@error(
    f"remove {_TOTAL}: DeepSpeed computes it from the other two",
    "run: 0.12.0 to 0.19.8: Check batch related parameters",
)
def batch_product(facts: Facts) -> Iterator[Match]:
    total, micro, steps = (facts.get(name) for name in _NAMES)
    sizes = [value for value in (total, micro, steps) if value is not None]
    if _elastic(facts) or not all(is_number(value) and value > 0 for value in sizes) or total is None:
        return
    factors = {_MICRO: micro, _STEPS: steps, "processes": facts.data_parallel}
    known = {name: value for name, value in factors.items() if value is not None}
    product = math.prod(known.values())
    complete = len(known) == len(factors)
    if total % product or (complete and total != product):
        shown = " * ".join(f"{value} ({name})" for name, value in known.items())
        yield Match(_TOTAL, f"{total} is not {'' if complete else 'a multiple of '}{shown}")
