"""Keys that need ZeRO, or its third stage."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..facts import AUTO, Facts

_FLAGS = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def _below_3(facts: Facts) -> Iterator[Found]:
    stage = facts.stage
    if stage is None or stage >= 3:
        return
    zero = facts.block("zero_optimization")
    without = f"stage 3 has it, and this is stage {stage}: no effect"
    if facts.device("offload_param") not in ("none", AUTO):
        yield Found("zero_optimization.offload_param", without)
    if isinstance(zero.get("zero_hpz_partition_size"), int) and zero["zero_hpz_partition_size"] > 1:
        yield Found("zero_optimization.zero_hpz_partition_size", without)
    for name in _FLAGS:
        if zero.get(name) is True:
            yield Found(f"zero_optimization.{name}", without)
    if stage and facts.device("offload_optimizer") == "nvme":
        yield Found(
            "zero_optimization.offload_optimizer.device", f"stage 3 offloads to nvme, and this is stage {stage}"
        )


def _without_zero(facts: Facts) -> Iterator[Found]:
    if facts.stage == 0 and facts.device("offload_optimizer") not in ("none", AUTO):
        yield Found("zero_optimization.offload_optimizer", "stage 0: ZeRO is off, and only ZeRO offloads")


def _partitioned_twice(facts: Facts) -> Iterator[Found]:
    size = facts.get("zero_optimization", "zero_hpz_partition_size", default=1)
    if facts.stage == 3 and isinstance(size, int) and size > 1:
        yield Found(
            "zero_optimization.zero_hpz_partition_size",
            "up to 0.13.1 the backward pass runs on the weights of a step before; 0.12 also ends in ValueError, "
            "Group rank is not part of group, beside a torch of 2024 or later",
        )


RULES = (
    Rule(
        id="needs_stage_3",
        level=Level.WARNING,
        find=_below_3,
        remedy="set stage 3, or delete the key",
        evidence=("run: 0.14.2 to 0.19.8 with stages 1 and 2: accepted, the same optimizer is built",),
    ),
    Rule(
        id="hpz_backward_on_old_weights",
        level=Level.ERROR,
        find=_partitioned_twice,
        remedy="DeepSpeed 0.13.2 or newer, or delete the key",
        affects={"deepspeed": "<0.13.2"},
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/4851",
            "https://github.com/deepspeedai/DeepSpeed/pull/4906",
            "https://github.com/deepspeedai/DeepSpeed/pull/4862",
            "run: the audit on two ranks: from step 2 on 0.13.1 has other gradients than PyTorch, 0.13.2 has not",
        ),
    ),
    Rule(
        id="offload_without_zero",
        level=Level.WARNING,
        find=_without_zero,
        remedy="set stage 1, 2 or 3, or delete the block",
        evidence=("the source of 0.12.0 to 0.19.8",),
    ),
)
