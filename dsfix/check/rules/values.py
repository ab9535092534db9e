"""Values of the wrong kind."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator

from packaging.version import Version

from ...rules import Found, Level, Rule
from ..facts import AUTO, Facts, is_number, name_of

_BLOCKS = ("fp16", "bf16", "bfloat16", "torch_autocast", "optimizer", "scheduler", "activation_checkpointing")
_TOP_BOOLEANS = (
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "prescale_gradients",
    "wall_clock_breakdown",
    "memory_breakdown",
    "dump_state",
    "sparse_gradients",
    "disable_allgather",
)
_TOP_NUMBERS = ("gradient_clipping", "gradient_predivide_factor", "steps_per_print")
_WORDS = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"}
_DEVICES = ("none", "cpu", "nvme")


def _fractions(facts: Facts) -> Iterator[Found]:
    for path, value in facts.walk():
        key = facts.known.keys.find(*path)
        if key is not None and key.kind == "int" and isinstance(value, float) and math.isfinite(value) and value % 1:
            yield Found(name_of(path), f"{value} has a fraction, and an integer is wanted: rejected")


def _strings(facts: Facts) -> Iterator[Found]:
    readers = {"int": (int, "integer"), "float": (float, "number")}
    for path, value in facts.walk():
        key = facts.known.keys.find(*path)
        if key is None or not isinstance(value, str) or value == AUTO:
            continue
        if key.kind in readers and not _reads(readers[key.kind][0], value):
            yield Found(name_of(path), f'"{value}" is a string that is no {readers[key.kind][1]}: rejected')
        elif key.kind == "bool" and value.lower() not in _WORDS:
            yield Found(name_of(path), f'"{value}" is neither true nor false: rejected')


def _reads(reader: type, text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True


def _quoted(facts: Facts) -> Iterator[Found]:
    for name in _TOP_BOOLEANS:
        value = facts.get(name)
        if isinstance(value, str) and value != AUTO:
            yield Found(name, f'"{value}" is a string, and any string counts as true')
    for name in _TOP_NUMBERS:
        value = facts.get(name)
        if isinstance(value, str) and value != AUTO:
            yield Found(name, f'"{value}" is a string where a number is wanted')
    for section in ("optimizer", "scheduler"):
        for name, value in facts.block(section, "params").items():
            if isinstance(value, str) and value != AUTO and _reads(float, value):
                yield Found(f"{section}.params.{name}", f'"{value}" is a string where a number is wanted')


def _blocks(facts: Facts) -> Iterator[Found]:
    for name in _BLOCKS:
        value = facts.get(name, default={})
        if not isinstance(value, dict):
            yield Found(name, f"{_shown(value)} stands where a block in braces is wanted")
    zero = facts.get("zero_optimization", default={})
    if not isinstance(zero, (dict, bool)):
        yield Found("zero_optimization", f"{_shown(zero)} stands where a block in braces is wanted")
    for part in ("offload_optimizer", "offload_param"):
        value = facts.get("zero_optimization", part)
        if value is not None and not isinstance(value, dict):
            yield Found(f"zero_optimization.{part}", f"{_shown(value)} stands where a block in braces is wanted")


def _shown(value: object) -> str:
    """As it stands in the file, cut short."""
    return textwrap.shorten(json.dumps(value, default=str), 40, placeholder=" …")


def _stages(facts: Facts) -> Iterator[Found]:
    stage = facts.get("zero_optimization", "stage", default=0)
    if stage == AUTO or (is_number(stage) and stage in (0, 1, 2, 3)) or isinstance(stage, bool):
        return
    if stage in ("0", "1", "2", "3") and facts.release >= Version("0.15.0"):
        return
    yield Found("zero_optimization.stage", f"{_shown(stage)} is none of 0, 1, 2, 3: rejected")


def _devices(facts: Facts) -> Iterator[Found]:
    for part in ("offload_optimizer", "offload_param"):
        device = facts.get("zero_optimization", part, "device", default="none")
        if device not in (*_DEVICES, AUTO):
            yield Found(
                f"zero_optimization.{part}.device", f"{_shown(device)} is none of {', '.join(_DEVICES)}: rejected"
            )


def _empty_bucket(facts: Facts) -> Iterator[Found]:
    value = facts.get("zero_optimization", "reduce_bucket_size")
    if is_number(value) and value <= 0:
        if facts.release >= Version("0.19.6") or value < 0:
            yield Found("zero_optimization.reduce_bucket_size", f"{value} is rejected")
        elif facts.stage != 0:
            what = "DeepSpeed stops with a ZeroDivisionError in the first backward pass"
            yield Found("zero_optimization.reduce_bucket_size", what)


def _infinite(facts: Facts) -> Iterator[Found]:
    for path, value in facts.walk():
        if isinstance(value, float) and not math.isfinite(value) and path != ("steps_per_print",):  # accelerate's
            yield Found(name_of(path), f"{value} is no usable number")


RULES = (
    Rule(
        id="fractional_integer",
        level=Level.ERROR,
        affects={"deepspeed": ">=0.15.0"},
        find=_fractions,
        remedy="round it",
        evidence=("run: 0.15.4 to 0.19.8: ValidationError; 0.12.0, 0.14.2 cut the fraction off",),
    ),
    Rule(
        id="string_for_a_number",
        level=Level.ERROR,
        find=_strings,
        remedy="write it without quotes",
        evidence=('run: 0.12.0 to 0.19.8: "5e8" is rejected, "500000000" accepted',),
    ),
    Rule(
        id="quoted_value",
        level=Level.ERROR,
        find=_quoted,
        remedy="write it without quotes",
        evidence=('run: 0.12.0 to 0.19.8: zero_allow_untested_optimizer "false" is on; lr "1e-3" is a TypeError',),
    ),
    Rule(
        id="block_wanted",
        level=Level.ERROR,
        find=_blocks,
        remedy='write a block, e.g. "fp16": {"enabled": true}',
        evidence=("run: 0.12.0 to 0.19.8: TypeError or AttributeError",),
    ),
    Rule(
        id="unknown_stage",
        level=Level.ERROR,
        find=_stages,
        remedy="write 0, 1, 2 or 3",
        evidence=('run: 0.12.0 to 0.19.8; "2" is accepted from 0.15.0 on',),
    ),
    Rule(
        id="unknown_offload_device",
        level=Level.ERROR,
        find=_devices,
        remedy="write none, cpu or nvme",
        evidence=("run: 0.12.0 to 0.19.8: ValidationError",),
    ),
    Rule(
        id="empty_bucket",
        level=Level.ERROR,
        find=_empty_bucket,
        remedy="write a positive number of elements, e.g. 5e8",
        evidence=("run: 0.14.2, 0.15.4, 0.16.9: ZeroDivisionError; 0.19.8: ValidationError",),
    ),
    Rule(
        id="not_finite",
        level=Level.ERROR,
        find=_infinite,
        remedy="write a finite number",
        evidence=("pydantic rejects it where an integer is wanted",),
    ),
)
