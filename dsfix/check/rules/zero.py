"""Keys that require ZeRO, or stage 3 of it."""

from __future__ import annotations

from collections.abc import Iterator

from ...job import AUTO
from ...rules import Match, error, warning
from ..facts import Facts

_FLAGS = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


@warning(
    "set stage 3, or remove the key", "run: 0.14.2 to 0.19.8 with stages 1 and 2: accepted, the same optimizer is built"
)
def needs_stage_3(facts: Facts) -> Iterator[Match]:
    stage = facts.stage
    if stage is None or stage >= 3:
        return
    zero = facts.block("zero_optimization")
    no_effect = f"requires stage 3, has no effect with stage {stage}"
    if facts.device("offload_param") not in ("none", AUTO):
        yield Match("zero_optimization.offload_param", no_effect)
    if isinstance(zero.get("zero_hpz_partition_size"), int) and zero["zero_hpz_partition_size"] > 1:
        yield Match("zero_optimization.zero_hpz_partition_size", no_effect)
    for name in _FLAGS:
        if zero.get(name) is True:
            yield Match(f"zero_optimization.{name}", no_effect)
    if stage and facts.device("offload_optimizer") == "nvme":
        what = f"offloading to nvme requires stage 3, this is stage {stage}"
        yield Match("zero_optimization.offload_optimizer.device", what)


@warning("set stage 1, 2 or 3, or remove the block", "the source of 0.12.0 to 0.19.8")
def offload_without_zero(facts: Facts) -> Iterator[Match]:
    if facts.stage == 0 and facts.device("offload_optimizer") not in ("none", AUTO):
        yield Match("zero_optimization.offload_optimizer", "has no effect with stage 0: offloading requires ZeRO")


@error(
    "upgrade to DeepSpeed 0.13.2 or later, or remove the key",
    "#4851",
    "#4906",
    "#4862",
    "run: the audit on two ranks: from step 2 on, gradients differ from PyTorch's on 0.13.1, not on 0.13.2",
    affects={"deepspeed": "<0.13.2"},
)
def hpz_backward_on_old_weights(facts: Facts) -> Iterator[Match]:
    size = facts.get("zero_optimization", "zero_hpz_partition_size", default=1)
    if facts.stage == 3 and isinstance(size, int) and size > 1:
        yield Match(
            "zero_optimization.zero_hpz_partition_size",
            "through 0.13.1 the backward pass uses the weights of a previous step; 0.12 also fails with ValueError: "
            "Group rank is not part of group, with torch releases since 2024",
        )
