"""Scales the sizes of a config down to a small model and few steps: several buckets stay several buckets."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..check.facts import Facts, is_number
from ..job import AUTO
from .auto import arguments
from .draft import Draft
from .plan import PARAMETERS, WIDTH

#: Parameters of the user's model if --model-args does not give them.
USUAL = 7e9
_USUAL_WIDTH = 4096

_LARGEST_MICRO_BATCH, _LARGEST_ACCUMULATION, _ACCUMULATION = 2, 8, 4
_AHEAD = 2  # steps of a schedule after the last training step
_MICRO, _STEPS, _TOTAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"

_POWER, _LARGEST_POWER = "initial_scale_power", 16

# size in elements -> DeepSpeed's default, all releases from 0.12.0: runtime/zero/config.py
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


def batches(draft: Draft) -> None:
    """Sets the three batch keys for the plan's ranks. Accumulation is kept unless it is very large."""
    facts, config = draft.facts, draft.config
    total, micro = config.pop(_TOTAL, None), config.get(_MICRO)
    micro = arguments(facts)["per_device_train_batch_size"] if micro == AUTO else micro
    accumulation = config.get(_STEPS)
    if accumulation is None and is_number(total) and is_number(micro):
        job = facts.world_size or draft.plan.ranks
        accumulation = max(1, int(total) // (int(micro) * job))
        draft.notes.append(f"{_STEPS} {accumulation}, for {_TOTAL} {total} on {job} processes")
    shrunk = _ACCUMULATION if (accumulation or 1) > _LARGEST_ACCUMULATION else int(accumulation or 1)
    per_rank = min(int(micro), _LARGEST_MICRO_BATCH) if is_number(micro) else _LARGEST_MICRO_BATCH
    config.update({_MICRO: per_rank, _STEPS: shrunk, _TOTAL: per_rank * shrunk * draft.plan.ranks})
    if per_rank != micro:
        draft.notes.append(f"micro-batches of {per_rank}")
    if shrunk != (accumulation or 1):
        draft.notes.append(f"accumulation {shrunk} for {accumulation}")


def loss_scale(draft: Draft) -> None:
    """Lowers the initial dynamic loss scale: without a value ZeRO starts with 2**32 through 0.16."""
    fp16 = draft.config.get("fp16") or {}
    if not fp16.get("enabled") or fp16.get("loss_scale") or fp16.get(_POWER, _LARGEST_POWER + 1) <= _LARGEST_POWER:
        return
    draft.config["fp16"] = {**fp16, _POWER: _LARGEST_POWER}
    draft.notes.append(f"fp16.{_POWER} {_LARGEST_POWER}: with a higher one all steps would be skipped")


def sizes(draft: Draft) -> None:
    """Scales the sizes of zero_optimization, including the defaults of missing ones, in proportion to the model.

    "auto" has been replaced by values for the small model.
    """
    facts, block = draft.facts, draft.config.get("zero_optimization")
    if not isinstance(block, dict) or not block.get("stage"):
        return
    written = facts.block("zero_optimization")
    for old, name in _OLD_NAMES.items():
        if old in block:
            block[name] = block.pop(old)
    scaled = []
    for name, default in ({**_BUCKETS_3, **_THRESHOLDS} if facts.stage == 3 else _BUCKETS).items():
        if AUTO in (written.get(name), written.get(name.partition("stage3_")[2])):
            continue
        block[name] = _scaled(facts, name, block[name] if is_number(block.get(name)) else default)
        scaled.append(f"{name} {block[name]}")
    if scaled:
        real = f"{_parameters(facts):.3g} parameters (--model-args parameters=…)"
        draft.notes.append(f"in proportion to a model of {real}: {', '.join(scaled)}")


def _scaled(facts: Facts, name: str, value: float) -> int:
    """A bucket is a fraction of the model; a threshold lies between the sizes of its vectors and its matrices."""
    if value <= 0:
        return int(value)
    real = _parameters(facts)
    width = _USUAL_WIDTH * (real / USUAL) ** (1 / 3)  # a layer has 12 width² parameters, and depth grows with width
    small = WIDTH ** (math.log(value) / math.log(width)) if name in _THRESHOLDS else value * PARAMETERS / real
    return min(int(value), max(1, round(small)))


def _parameters(facts: Facts) -> float:
    return facts.number("parameters") or USUAL


def schedule(draft: Draft) -> None:
    """Shortens the scheduler's periods so that the training goes through all of them."""
    scheduler, steps = draft.config.get("scheduler"), draft.plan.steps
    parameters = scheduler.get("params") if isinstance(scheduler, dict) else None
    if not isinstance(parameters, dict):
        return
    limits = {"warmup_num_steps": max(2, steps // 2), "total_num_steps": steps + _AHEAD}
    limits.update(dict.fromkeys(("cycle_first_step_size", "cycle_second_step_size"), max(2, steps // 3)))
    limits.update(lr_range_test_step_size=2, decay_step_size=2)
    shortened = []
    for name, most in limits.items():
        value = parameters.get(name)
        if value == AUTO or (is_number(value) and value > most):
            parameters[name] = most
            shortened.append(f"{name} {most}")
    if shortened:
        draft.notes.append(f"the scheduler's {', '.join(shortened)}")
