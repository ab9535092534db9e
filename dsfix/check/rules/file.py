"""The syntax of the file, and accelerate's config file."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..accelerate import PLACES
from ..facts import Facts


def _duplicates(facts: Facts) -> Iterator[Found]:
    for key in facts.reading.duplicates:
        yield Found(key, "duplicate key: DeepSpeed raises a ValueError, json uses the last value")


def _not_plain_json(facts: Facts) -> Iterator[Found]:
    if not facts.reading.plain_json and not facts.plain and facts.has_auto and not facts.placeholders:
        what = 'not plain JSON: transformers and accelerate, which fill in "auto", cannot read it; DeepSpeed can'
        yield Found("", what)


def _ignored(facts: Facts) -> Iterator[Found]:
    accelerate = facts.accelerate
    if accelerate is None or accelerate.file is None:
        return
    named = [f"deepspeed_config.{key}" for key in PLACES if key in accelerate.block]
    if accelerate.others.get("mixed_precision") is not None:
        named.append("mixed_precision")
    for where in named:
        yield Found(where, "cannot be combined with deepspeed_config_file: accelerate raises a ValueError")


def _not_deepspeed(facts: Facts) -> Iterator[Found]:
    accelerate = facts.accelerate
    if accelerate is not None and str(accelerate.others.get("distributed_type", "DEEPSPEED")).upper() != "DEEPSPEED":
        kind = accelerate.others["distributed_type"]
        yield Found("distributed_type", f"is {kind}: accelerate uses deepspeed_config with DEEPSPEED only")


def _no_zero(facts: Facts) -> Iterator[Found]:
    if facts.accelerate is not None and "zero_optimization" not in facts.config:
        yield Found("zero_optimization", "missing: accelerate requires it in a DeepSpeed config")


RULES = (
    Rule(
        id="duplicate_key",
        level=Level.ERROR,
        find=_duplicates,
        remedy="remove one of them",
        evidence=("run: 0.12.0 to 0.19.8: Duplicate keys in DeepSpeed config",),
    ),
    Rule(
        id="not_plain_json",
        level=Level.WARNING,
        find=_not_plain_json,
        remedy="write plain JSON",
        evidence=("run: accelerate 1.15.0: JSONDecodeError",),
    ),
    Rule(
        id="accelerate_ignores",
        level=Level.ERROR,
        find=_ignored,
        remedy="set it in the DeepSpeed config file only",
        evidence=("run: accelerate 1.15.0: When using `deepspeed_config_file`, the following … will be ignored",),
    ),
    Rule(
        id="accelerate_not_deepspeed",
        level=Level.WARNING,
        find=_not_deepspeed,
        remedy="set distributed_type: DEEPSPEED",
        evidence=("accelerate's launcher: use_deepspeed",),
    ),
    Rule(
        id="accelerate_without_zero",
        level=Level.ERROR,
        find=_no_zero,
        remedy='add "zero_optimization": {"stage": 0}',
        evidence=("run: accelerate 1.15.0: Please specify the ZeRO optimization config",),
    ),
)
