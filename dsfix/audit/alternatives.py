"""What could be changed in a config, or in the call around it: each a candidate for the change that avoids a fault."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .plan import Plan

_ZERO = "zero_optimization"
#: The key is taken out.
ABSENT = object()
# what else in zero_optimization says where things are, and has a candidate of its own
_PLACES = ("stage", "offload_optimizer", "offload_param")
# booleans of zero_optimization that may be the other way round, too -> DeepSpeed's default
_FLAGS = {"contiguous_gradients": True, "reduce_scatter": True, "overlap_comm": None, "allgather_partitions": True}
# keys at the top that only say how, and that DeepSpeed has a default for
_HOW = (
    *("communication_data_type", "data_types", "prescale_gradients", "gradient_predivide_factor", "checkpoint"),
    *("zero_force_ds_cpu_optimizer", "disable_allgather", "sparse_gradients", "load_from_fp32_weights"),
    *("managed_gradient_accumulation", "gradient_allreduce_op", "use_data_before_expert_parallelism"),
)


@dataclass(frozen=True)
class Change:
    """`what` in the imperative. config: dotted key -> what is put there, or ABSENT. fields: of the Plan."""

    what: str
    config: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, plan: Plan) -> Plan:
        config = copy.deepcopy(dict(plan.config))
        for key, value in self.config.items():
            *above, name = key.split(".")
            block = config
            for part in above:
                block = block.setdefault(part, {})
            if value is ABSENT:
                block.pop(name, None)
            else:
                block[name] = value
        return replace(plan, config=config, **self.fields)

    def as_json(self) -> dict[str, Any]:
        """`config`: key -> value, null where the key is taken out; empty where it is about the call."""
        return {"change": self.what, "config": {key: None if v is ABSENT else v for key, v in self.config.items()}}


def changed(plan: Plan, changes: Iterable[Change]) -> Plan:
    """The plan with all of them, its batch size made whole again."""
    for change in changes:
        plan = change.apply(plan)
    config = dict(plan.config)
    config["train_batch_size"] = plan.micro_batch * plan.accumulation * plan.ranks
    return replace(plan, config=config)


def alternatives(plan: Plan, sizes: Mapping[str, int]) -> list[Change]:
    """The candidates, the least first: how it communicates, what it computes, the call, the stage, the precision.

    sizes: what the plan would have for DeepSpeed's default sizes.
    """
    return [*_how(plan, sizes), *_flags(plan), *_what(plan), *_call(plan), *_stages(plan), *_precision(plan)]


def _how(plan: Plan, sizes: Mapping[str, int]) -> Iterator[Change]:
    for name in _HOW:
        if plan.config.get(name):
            yield _without(name)
    for name, value in _zero(plan).items():
        if name in sizes:
            if value != sizes[name]:
                yield Change(f"leave out {_ZERO}.{name}", {f"{_ZERO}.{name}": sizes[name]})
        elif value and name not in (*_PLACES, *_FLAGS):
            yield _without(f"{_ZERO}.{name}")


def _without(key: str) -> Change:
    return Change(f"leave out {key}", {key: ABSENT})


def _zero(plan: Plan) -> Mapping[str, Any]:
    block: Mapping[str, Any] = plan.config.get(_ZERO, {})
    return block


def _flags(plan: Plan) -> Iterator[Change]:
    for name, default in _FLAGS.items() if plan.stage else ():
        usual = plan.stage == 3 if default is None else default
        value = not _zero(plan).get(name, usual)
        yield Change(f"set {_ZERO}.{name} to {str(value).lower()}", {f"{_ZERO}.{name}": value})


def _what(plan: Plan) -> Iterator[Change]:
    if plan.config.get("gradient_clipping"):
        yield Change("set gradient_clipping to 0", {"gradient_clipping": 0.0})
    if plan.accumulation > 1:
        yield Change("set gradient_accumulation_steps to 1", {"gradient_accumulation_steps": 1})
    if plan.config.get("scheduler"):
        yield _without("scheduler")
    for part in ("offload_param", "offload_optimizer"):
        if _zero(plan).get(part, {}).get("device", "none") != "none":
            yield _without(f"{_ZERO}.{part}")


def _call(plan: Plan) -> Iterator[Change]:
    if plan.checkpointing != "none":
        other = "reentrant" if plan.checkpointing == "non-reentrant" else "non-reentrant"
        what = f"checkpoint with use_reentrant={other == 'reentrant'}"
        yield Change(what, fields={"checkpointing": other})
        yield Change("do without gradient checkpointing", fields={"checkpointing": "none"})
    if plan.ep_size > 1:
        yield Change("set ep_size of the MoE layers to 1", fields={"ep_size": 1})
    if plan.zero_init:
        yield Change("build the model outside zero.Init", fields={"zero_init": False})
    if plan.backwards != "loss":
        yield Change("end each forward with one engine.backward(loss)", fields={"backwards": "loss"})
    if plan.optimizer != "AdamW":
        allowed = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
        yield Change("pass torch.optim.AdamW to deepspeed.initialize", allowed, {"optimizer": "AdamW"})


def _stages(plan: Plan) -> Iterator[Change]:
    for stage in range(plan.stage - 1, -1, -1):
        yield Change(f"set {_ZERO}.stage to {stage}", {f"{_ZERO}.stage": stage}, {"zero_init": False})


def _precision(plan: Plan) -> Iterator[Change]:
    if plan.precision == "fp16":
        bf16 = {"fp16": ABSENT, "bf16": {"enabled": True}}
        yield Change("compute in bf16 instead of fp16", bf16, {"skip_step": None})
    if plan.precision != "fp32":
        fp32 = {"fp16": ABSENT, "bf16": ABSENT, "bfloat16": ABSENT}
        yield Change(f"compute in fp32 instead of {plan.precision}", fp32, {"skip_step": None})
