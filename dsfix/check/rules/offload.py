"""offload_optimizer and offload_param."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..facts import Facts

_PARTS = ("offload_optimizer", "offload_param")


def _no_path(facts: Facts) -> Iterator[Found]:
    for part in _PARTS:
        path = facts.get("zero_optimization", part, "nvme_path")
        if facts.stage == 3 and facts.device(part) == "nvme" and path in (None, "none"):
            yield Found(f"zero_optimization.{part}.nvme_path", "not set, but the device is nvme")


def _not_gathered(facts: Facts) -> Iterator[Found]:
    zero = facts.block("zero_optimization")
    names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
    old = "stage3_gather_fp16_weights_on_model_save"
    if facts.stage == 3 and facts.arguments.get("save_16bit") and not any(zero.get(name) for name in (*names, old)):
        yield Found(f"zero_optimization.{names[0]}", "not set: save_16bit_model saves no 16-bit weights")


RULES = (
    Rule(
        id="no_nvme_path",
        level=Level.ERROR,
        find=_no_path,
        remedy="set nvme_path to a directory on a local NVMe disk",
        evidence=("run: 0.14.2 to 0.19.8: AssertionError for offload_param",),
    ),
    Rule(
        id="weights_not_gathered",
        level=Level.WARNING,
        find=_not_gathered,
        remedy='set "stage3_gather_16bit_weights_on_model_save": true, or convert with zero_to_fp32.py',
        evidence=("the source of 0.12.0 to 0.19.8: save_16bit_model returns False",),
    ),
)
