"""ZenFlow and SuperOffload, which step an optimizer of their own on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...rules import Match, error, note
from ..facts import Facts

_OWN_KEYS = ("torch_adam", "adam_w_mode")  # of the config's Adam; torch's does not know them


def _zenflow(facts: Facts) -> bool:
    """Whether ZenFlow steps a model in ZeRO-1 or 2."""
    on = isinstance(facts.get("zero_optimization", "zenflow"), Mapping)
    return on and facts.stage in (1, 2) and facts.device("offload_optimizer") == "cpu"


@error(
    "upgrade to DeepSpeed 0.19.2 or later, or remove zenflow",
    "#7771",
    "run: 0.18.3",
    "the source of 0.18.2, 0.19.1 and 0.19.2",
    affects={"deepspeed": ">=0.18.3,<0.19.2"},
)
def zenflow_never_selects(facts: Facts) -> Iterator[Match]:
    if _zenflow(facts):
        what = (
            "its count of micro-batches stays at -1: gradients are never selected, and the first update divides by zero"
        )
        yield Match("zero_optimization.zenflow", f"{what}: the weights become nan")


@error(
    "remove the key; ZenFlow always uses AdamW",
    "run: 0.19.8",
    "the source of 0.19.0 and 0.19.1",
    affects={"deepspeed": ">=0.19.1"},
)
def zenflow_optimizer_keys(facts: Facts) -> Iterator[Match]:
    if _zenflow(facts) and facts.optimizer in ("adam", "adamw") and "optimizer" not in facts.arguments:
        for key in _OWN_KEYS:
            if key in facts.block("optimizer", "params"):
                what = "ZenFlow passes it to torch.optim.AdamW, which raises a TypeError"
                yield Match(f"optimizer.params.{key}", what)


@note(
    "upgrade to DeepSpeed 0.18.9 or later, or use one parameter group and no scheduler",
    "#7906",
    "the source of 0.18.8",
    affects={"deepspeed": ">=0.18.0,<0.18.9"},
)
def super_offload_settings(facts: Facts) -> Iterator[Match]:
    if facts.stage == 3 and facts.get("zero_optimization", "offload_optimizer", "super_offload") is True:
        what = "weights updated on the CPU keep the initial learning rate; schedulers do not reach them"
        where = "zero_optimization.offload_optimizer.super_offload"
        yield Match(where, f"{what}. All parameter groups are merged into one, with the first group's settings")
