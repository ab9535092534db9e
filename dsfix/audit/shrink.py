"""Sizes: the same config for a small model and few steps, so that what was several buckets is several buckets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..check.facts import AUTO, Facts, is_number

#: Of the audit's model: width, and parameters in all.
HIDDEN, PARAMETERS = 16, 6_500
#: Of the user's model, where --model-args does not say.
USUAL = 7e9
_USUAL_HIDDEN = 4096

_LARGEST_MICRO_BATCH, _LARGEST_ACCUMULATION, _ACCUMULATION = 2, 8, 4
_AHEAD = 2  # steps of a schedule beyond those that are made
_MICRO, _STEPS, _TOTAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"

_POWER, _LARGEST_POWER = "initial_scale_power", 16

# elements -> DeepSpeed's default, all releases from 0.12.0 on: runtime/zero/config.py
_BUCKETS: Mapping[str, float] = {"reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}
_BUCKETS_3: Mapping[str, float] = {
    **_BUCKETS,
    "stage3_prefetch_bucket_size": 5e7,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "sub_group_size": 1e9,
}
_THRESHOLDS: Mapping[str, float] = {"stage3_param_persistence_threshold": 1e5}
_OLD_NAMES = {name.partition("stage3_")[2]: name for name in (*_BUCKETS_3, *_THRESHOLDS) if name.startswith("stage3_")}


def batches(facts: Facts, config: dict[str, Any], known: Mapping[str, Any], ranks: int) -> list[str]:
    """The three batch keys for that many ranks: accumulation as it is, unless it is huge. Says what has changed."""
    total, micro = config.pop(_TOTAL, None), config.get(_MICRO)
    micro = known["per_device_train_batch_size"] if micro == AUTO else micro
    accumulation, assumed = config.get(_STEPS), []
    if accumulation is None and is_number(total) and is_number(micro):
        job = facts.world_size or ranks
        accumulation = max(1, int(total) // (int(micro) * job))
        assumed.append(f"{_STEPS} {accumulation}, for {_TOTAL} {total} on {job} processes")
    shrunk = _ACCUMULATION if (accumulation or 1) > _LARGEST_ACCUMULATION else int(accumulation or 1)
    per_rank = min(int(micro), _LARGEST_MICRO_BATCH) if is_number(micro) else _LARGEST_MICRO_BATCH
    config.update({_MICRO: per_rank, _STEPS: shrunk, _TOTAL: per_rank * shrunk * ranks})
    if per_rank != micro:
        assumed.append(f"micro-batches of {per_rank}")
    if shrunk != (accumulation or 1):
        assumed.append(f"accumulation {shrunk} for {accumulation}")
    return assumed


def loss_scale(config: dict[str, Any]) -> list[str]:
    """A dynamic loss scale that a few steps can come down from: ZeRO begins with 2**32 up to 0.16 if none is given."""
    fp16 = config.get("fp16") or {}
    if not fp16.get("enabled") or fp16.get("loss_scale") or fp16.get(_POWER, _LARGEST_POWER + 1) <= _LARGEST_POWER:
        return []
    config["fp16"] = {**fp16, _POWER: _LARGEST_POWER}
    return [f"fp16.{_POWER} {_LARGEST_POWER}: more steps than are made would be skipped with a higher one"]


def defaults(facts: Facts) -> dict[str, int]:
    """DeepSpeed's default of each size that this stage reads, in proportion."""
    if not facts.stage:
        return {}
    names = {**_BUCKETS_3, **_THRESHOLDS} if facts.stage == 3 else _BUCKETS
    return {name: _small(facts, name, value) for name, value in names.items()}


def zero(facts: Facts, config: dict[str, Any]) -> list[str]:
    """The sizes of zero_optimization in proportion to the model, those that are left out as well.

    What was "auto" has got its value for the small model already.
    """
    block, written = config["zero_optimization"], facts.block("zero_optimization")
    for old, name in _OLD_NAMES.items():
        if old in block:
            block[name] = block.pop(old)
    shrunk = []
    for name, default in defaults(facts).items():
        if AUTO in (written.get(name), written.get(name.partition("stage3_")[2])):
            continue
        block[name] = _small(facts, name, block[name]) if is_number(block.get(name)) else default
        shrunk.append(f"{name} {block[name]}")
    if not shrunk:
        return []
    real = _real(facts)
    return [f"in proportion to a model of {real:.3g} parameters (--model-args parameters=…): {', '.join(shrunk)}"]


def _small(facts: Facts, name: str, value: float) -> int:
    """A bucket is a part of the model; a threshold stands between its vectors and its matrices."""
    if value <= 0:
        return int(value)
    real = _real(facts)
    width = _USUAL_HIDDEN * (real / USUAL) ** (1 / 3)  # a layer has 12 width² parameters, and layers grow with width
    small = HIDDEN ** (math.log(value) / math.log(width)) if name in _THRESHOLDS else value * PARAMETERS / real
    return min(int(value), max(1, round(small)))


def _real(facts: Facts) -> float:
    return facts.number("parameters") or USUAL


def schedule(config: dict[str, Any], steps: int) -> list[str]:
    """The scheduler's steps, so that its parts are all seen."""
    scheduler = config.get("scheduler")
    parameters = scheduler.get("params") if isinstance(scheduler, dict) else None
    if not isinstance(parameters, dict):
        return []
    wanted = {"warmup_num_steps": max(2, steps // 2), "total_num_steps": steps + _AHEAD}
    wanted.update(dict.fromkeys(("cycle_first_step_size", "cycle_second_step_size"), max(2, steps // 3)))
    wanted.update(lr_range_test_step_size=2, decay_step_size=2)
    shrunk = []
    for name, most in wanted.items():
        value = parameters.get(name)
        if value == AUTO or (is_number(value) and value > most):
            parameters[name] = most
            shrunk.append(f"{name} {most}")
    return [f"the scheduler's {', '.join(shrunk)}"] if shrunk else []
