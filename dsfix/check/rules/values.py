"""Values of the wrong type, or out of range."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator

from packaging.version import Version

from ...job import AUTO
from ...rules import Match, error
from ..facts import Facts, is_number, name_of

_BLOCKS = {
    **dict.fromkeys(("fp16", "bf16", "bfloat16", "torch_autocast"), '{"enabled": true}'),
    "optimizer": '{"type": "AdamW", "params": {"lr": 1e-5}}',
    "scheduler": '{"type": "WarmupLR", "params": {}}',
    "activation_checkpointing": '{"partition_activations": true}',
    "zero_optimization": '{"stage": 2}',
    "zero_optimization.offload_optimizer": '{"device": "cpu"}',
    "zero_optimization.offload_param": '{"device": "cpu"}',
}
_TOP_BOOLEANS = (
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients", "wall_clock_breakdown"),
    *("memory_breakdown", "dump_state", "sparse_gradients", "disable_allgather"),
)
_TOP_NUMBERS = ("gradient_clipping", "gradient_predivide_factor", "steps_per_print")
_BOOLEANS = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"}
_DEVICES = ("none", "cpu", "nvme")


@error(
    "round it", "run: 0.15.4 to 0.19.8: ValidationError; 0.12.0, 0.14.2 truncate it", affects={"deepspeed": ">=0.15.0"}
)
def fractional_integer(facts: Facts) -> Iterator[Match]:
    for path, value in facts.walk():
        key = facts.known.keys.find(*path)
        if key is not None and key.kind == "int" and isinstance(value, float) and math.isfinite(value) and value % 1:
            yield Match(name_of(path), f"expected an integer, got {value}: DeepSpeed rejects it")


@error("write it without quotes", 'run: 0.12.0 to 0.19.8: "5e8" is rejected, "500000000" accepted')
def string_for_a_number(facts: Facts) -> Iterator[Match]:
    readers = {"int": (int, "an integer"), "float": (float, "a number")}
    for path, value in facts.walk():
        key = facts.known.keys.find(*path)
        if key is None or not isinstance(value, str) or value == AUTO:
            continue
        if key.kind in readers and not _reads(readers[key.kind][0], value):
            yield Match(name_of(path), f'expected {readers[key.kind][1]}, got "{value}": DeepSpeed rejects it')
        elif key.kind == "bool" and value.lower() not in _BOOLEANS:
            yield Match(name_of(path), f'expected true or false, got "{value}": DeepSpeed rejects it')


def _reads(reader: type, text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True


@error(
    "write it without quotes",
    'run: 0.12.0 to 0.19.8: zero_allow_untested_optimizer "false" is on; lr "1e-3" is a TypeError',
)
def quoted_value(facts: Facts) -> Iterator[Match]:
    for name in _TOP_BOOLEANS:
        value = facts.get(name)
        if isinstance(value, str) and value != AUTO:
            yield Match(name, f'"{value}" is a string, and any string is treated as true')
    for name in _TOP_NUMBERS:
        value = facts.get(name)
        if isinstance(value, str) and value != AUTO:
            yield Match(name, f'expected a number, got the string "{value}"')
    for section in ("optimizer", "scheduler"):
        for name, value in facts.block(section, "params").items():
            if isinstance(value, str) and value != AUTO and _reads(float, value):
                yield Match(f"{section}.params.{name}", f'expected a number, got the string "{value}"')


@error("write an object", "run: 0.12.0 to 0.19.8: TypeError or AttributeError")
def block_wanted(facts: Facts) -> Iterator[Match]:
    for name, example in _BLOCKS.items():
        value = facts.get(*name.split("."), default={})
        old = name == "zero_optimization" and isinstance(value, bool)
        unset = "." in name and value is None
        if not isinstance(value, dict) and not old and not unset:
            yield Match(name, f"expected an object such as {example}, got {_shown(value)}")


def _shown(value: object) -> str:
    return textwrap.shorten(json.dumps(value, default=str), 40, placeholder=" …")


@error("set 0, 1, 2 or 3", 'run: 0.12.0 to 0.19.8; "2" is accepted since 0.15.0')
def unknown_stage(facts: Facts) -> Iterator[Match]:
    stage = facts.get("zero_optimization", "stage", default=0)
    if stage == AUTO or (is_number(stage) and stage in (0, 1, 2, 3)) or isinstance(stage, bool):
        return
    if stage in ("0", "1", "2", "3") and facts.release >= Version("0.15.0"):
        return
    yield Match("zero_optimization.stage", f"must be 0, 1, 2 or 3, got {_shown(stage)}: DeepSpeed rejects it")


@error("set none, cpu or nvme", "run: 0.12.0 to 0.19.8: ValidationError")
def unknown_offload_device(facts: Facts) -> Iterator[Match]:
    for part in ("offload_optimizer", "offload_param"):
        device = facts.get("zero_optimization", part, "device", default="none")
        if device not in (*_DEVICES, AUTO):
            what = f"must be none, cpu or nvme, got {_shown(device)}: DeepSpeed rejects it"
            yield Match(f"zero_optimization.{part}.device", what)


@error(
    "set a positive number of elements, e.g. 5e8",
    "run: 0.19.8: ValidationError; before 0.19.6 the patch zero_reduce_bucket_size_zero",
)
def empty_bucket(facts: Facts) -> Iterator[Match]:
    value = facts.get("zero_optimization", "reduce_bucket_size")
    if is_number(value) and value < (1 if facts.release >= Version("0.19.6") else 0):
        yield Match("zero_optimization.reduce_bucket_size", f"must be positive, got {value}: DeepSpeed rejects it")


@error("set a finite number", "pydantic rejects it for integer fields")
def not_finite(facts: Facts) -> Iterator[Match]:
    for path, value in facts.walk():
        if isinstance(value, float) and not math.isfinite(value) and path != ("steps_per_print",):  # accelerate's
            yield Match(name_of(path), f"expected a finite number, got {value}")
