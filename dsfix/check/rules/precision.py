"""fp16, bf16 and torch_autocast."""

from __future__ import annotations

from collections.abc import Iterator

from ...job import AUTO
from ...rules import Match, error, warning
from ..facts import Facts

_SECTIONS = ("fp16", "bf16", "bfloat16")
LOSS_SCALE = (
    *("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "consecutive_hysteresis"),
    "min_loss_scale",
)
_BOOLEANS = {"true", "false", "yes", "no", "on", "off", "1", "0"}


def _auto(facts: Facts) -> list[str]:
    return [name for name in _SECTIONS if facts.plain and facts.block(name).get("enabled") == AUTO]


@error(
    'set true or false; only transformers and accelerate fill in "auto"',
    "#6976",
    "run: 0.17.6, 0.18.9, 0.19.3, 0.19.8",
    affects={"deepspeed": ">=0.17.1"},
    patches=("auto_precision_dropped",),
)
def auto_precision(facts: Facts) -> Iterator[Match]:
    if not any(facts.on(name) for name in ("fp16", "bf16", "torch_autocast")):
        for name in _auto(facts):
            yield Match(f"{name}.enabled", '"auto" is silently treated as false: the job trains in fp32')


@warning(
    'set true or false; only transformers and accelerate fill in "auto"',
    "run: 0.12.0, 0.14.2, 0.16.9, 0.17.0: bf16 weights",
    affects={"deepspeed": "<0.17.1"},
)
def auto_precision_taken_for_true(facts: Facts) -> Iterator[Match]:
    for name in _auto(facts):
        yield Match(f"{name}.enabled", f'"auto" is treated as true: the job trains in {name}')


@error("disable one of them", "run: 0.12.0 to 0.19.8: bfloat16 and fp16 modes cannot be simultaneously enabled")
def fp16_and_bf16(facts: Facts) -> Iterator[Match]:
    if facts.on("fp16") and facts.on("bf16"):
        yield Match("fp16.enabled", "fp16 and bf16 are both enabled: DeepSpeed raises an AssertionError")


def _autocast(facts: Facts, effect: str) -> Iterator[Match]:
    for name in ("bf16", "fp16"):
        if facts.on(name) and facts.on("torch_autocast"):
            yield Match("torch_autocast.enabled", f"{name} and torch_autocast are both enabled: {effect}")


@error(
    "enable only one: torch_autocast for fp32 weights, bf16 or fp16 for 16-bit weights",
    "run: 0.17.6: Cannot enable both torch autocast and bfloat16",
    affects={"deepspeed": ">=0.17.2,<0.18.3"},
)
def precision_and_torch_autocast(facts: Facts) -> Iterator[Match]:
    return _autocast(facts, "DeepSpeed raises an AssertionError")


@warning(
    "enable only one: torch_autocast for fp32 weights, bf16 or fp16 for 16-bit weights",
    "run: 0.18.9, 0.19.8: accepted, the weights are bfloat16",
    affects={"deepspeed": ">=0.18.3"},
)
def precision_beside_torch_autocast(facts: Facts) -> Iterator[Match]:
    return _autocast(facts, "the weights are 16-bit; without it, torch_autocast keeps them in fp32")


def _unscaled(facts: Facts, stage: int) -> Iterator[Match]:
    dtype = str(facts.get("torch_autocast", "dtype")).rpartition(".")[2]
    if facts.on("torch_autocast") and facts.stage == stage and dtype in ("fp16", "float16", "half"):
        where = "with ZeRO-3" if stage == 3 else "without ZeRO"
        effect = "gradients below 6e-8 become zero, and larger ones lose digits"
        yield Match("torch_autocast.dtype", f"{where} this release does not scale the loss for fp16: {effect}")


@warning(
    'set "bfloat16", use ZeRO-1 or ZeRO-2, or upgrade to 0.18.0 or later',
    "#7619",
    "run: 0.17.2, 0.17.6: a loss of 1e-9 moves no weight; 0.18.0, 0.19.8: it does",
    affects={"deepspeed": ">=0.17.2,<0.18.0"},
)
def autocast_unscaled_without_zero(facts: Facts) -> Iterator[Match]:
    return _unscaled(facts, 0)


@warning(
    'set "bfloat16", use ZeRO-1 or ZeRO-2, or upgrade to 0.17.6 or later',
    "#7534",
    "run: 0.17.2, 0.17.5: a loss of 1e-9 moves no weight; 0.17.6, 0.19.8: it does",
    affects={"deepspeed": ">=0.17.2,<0.17.6"},
)
def autocast_unscaled_zero3(facts: Facts) -> Iterator[Match]:
    return _unscaled(facts, 3)


def _loss_scale(facts: Facts, effect: str) -> Iterator[Match]:
    for name in ("bf16", "bfloat16"):
        first, *others = [key for key in facts.block(name) if key in LOSS_SCALE] or [""]
        more = f" (and {', '.join(others)})" if others else ""
        if first:
            yield Match(f"{name}.{first}", f"loss scaling{more} is for fp16 only: {effect}")


@error("remove these keys", "run: 0.17.6, 0.18.9, 0.19.3, 0.19.8", affects={"deepspeed": ">=0.17.1"})
def loss_scale_under_bf16(facts: Facts) -> Iterator[Match]:
    return _loss_scale(facts, "DeepSpeed raises a ValidationError, extra inputs not permitted")


@warning("remove these keys", "run: 0.12.0, 0.14.2, 0.16.9, 0.17.0", affects={"deepspeed": "<0.17.1"})
def loss_scale_under_bf16_ignored(facts: Facts) -> Iterator[Match]:
    return _loss_scale(facts, "ignored here, rejected since 0.17.1")


@error(
    "write true or false without quotes",
    'run: 0.12.0, 0.14.2, 0.16.9, 0.17.0: "false" is on',
    affects={"deepspeed": "<0.17.1"},
)
def quoted_precision(facts: Facts) -> Iterator[Match]:
    for name in _SECTIONS:
        value = facts.block(name).get("enabled")
        if isinstance(value, str) and value.lower() in _BOOLEANS:
            yield Match(f"{name}.enabled", f'"{value}" is a string, which is treated as true: {name} is enabled')


@warning(
    "use ZeRO-1; since 0.18.5 this combination is refused",
    "#7790",
    "run: 0.17.6, 0.18.4: FP16_UnfusedOptimizer, and the same weights as without the key",
    affects={"deepspeed": ">=0.17.6,<0.18.5"},
)
def bf16_fp32_accumulation_ignored(facts: Facts) -> Iterator[Match]:
    if facts.on("bf16") and facts.stage == 0 and facts.get("data_types", "grad_accum_dtype") in ("fp32", "float32"):
        yield Match("data_types.grad_accum_dtype", "ignored: without ZeRO this release accumulates gradients in bf16")
