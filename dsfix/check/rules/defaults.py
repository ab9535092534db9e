"""What is left out, and is not the same in all releases."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ...rules import Found, Level, Rule
from ..facts import Facts


def _changed(facts: Facts) -> Iterator[Found]:
    new = facts.release >= Version("0.19.3")
    if facts.get("gradient_clipping") is None:
        yield Found("gradient_clipping", f"left out: {1.0 if new else 0.0} here; 0 up to 0.19.2, 1.0 from 0.19.3 on")


def _overflow(facts: Facts) -> Iterator[Found]:
    if facts.on("bf16") and facts.plain and facts.get("bf16", "check_grad_overflow") is None:
        what = "left out: from 0.19.3 on a step with inf or nan gradients is skipped, up to 0.19.2 it is made"
        yield Found("bf16.check_grad_overflow", what)


def _timeout(facts: Facts) -> Iterator[Found]:
    if facts.world_size is not None and facts.world_size > 1:
        what = "ranks wait 10 minutes for each other, up to 0.19.5 it was 30; evaluation on one rank may take longer"
        yield Found("DEEPSPEED_TIMEOUT", what)


RULES = (
    Rule(
        id="gradient_clipping_default",
        level=Level.NOTE,
        find=_changed,
        remedy='set it; "auto" takes max_grad_norm of transformers\' arguments',
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8068", "run: 0.19.2 and 0.19.3"),
    ),
    Rule(
        id="bf16_overflow_default",
        level=Level.NOTE,
        affects={"deepspeed": ">=0.17.1"},
        find=_overflow,
        remedy="set it to true or false",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8035",),
    ),
    Rule(
        id="timeout_default",
        level=Level.NOTE,
        affects={"deepspeed": ">=0.19.6"},
        find=_timeout,
        remedy="DEEPSPEED_TIMEOUT=30 (minutes) in the environment",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8253", "deepspeed/constants.py"),
    ),
)
