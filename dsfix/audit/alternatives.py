"""Changes of a config, or of the code around it, that may avoid a bug."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .plan import Plan

_ZERO = "zero_optimization"
#: The key is removed.
ABSENT = object()
# keys of zero_optimization about placement, which have their own candidates
_PLACEMENT = ("stage", "offload_optimizer", "offload_param")
# booleans of zero_optimization to flip -> DeepSpeed's default
_FLAGS = {"contiguous_gradients": True, "reduce_scatter": True, "overlap_comm": None, "allgather_partitions": True}
# top-level keys about communication and implementation, with a default in DeepSpeed
_TOP_LEVEL = (
    *("communication_data_type", "data_types", "prescale_gradients", "gradient_predivide_factor", "checkpoint"),
    *("zero_force_ds_cpu_optimizer", "disable_allgather", "sparse_gradients", "load_from_fp32_weights"),
    *("managed_gradient_accumulation", "gradient_allreduce_op", "use_data_before_expert_parallelism"),
)


@dataclass(frozen=True)
class Change:
    """what: in the imperative. config: dotted key -> new value, or ABSENT. fields: of the Plan."""

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
        """Returns `change` and `config`: key -> value, null for a removed key; empty for a change of the code."""
        return {"change": self.what, "config": {key: None if v is ABSENT else v for key, v in self.config.items()}}


def changed(plan: Plan, changes: Iterable[Change]) -> Plan:
    """Returns the plan with all changes and a consistent batch size."""
    for change in changes:
        plan = change.apply(plan)
    config = dict(plan.config)
    config["train_batch_size"] = plan.micro_batch * plan.accumulation * plan.ranks
    return replace(plan, config=config)


def alternatives(plan: Plan, sizes: Mapping[str, int]) -> list[Change]:
    """Returns the candidates, least intrusive first: communication, computation, code, stage, precision.

    sizes: DeepSpeed's default sizes, scaled to the plan.
    """
    return [
        *_communication(plan, sizes),
        *_flags(plan),
        *_computation(plan),
        *_code(plan),
        *_stages(plan),
        *_precision(plan),
    ]


def _communication(plan: Plan, sizes: Mapping[str, int]) -> Iterator[Change]:
    for name in _TOP_LEVEL:
        if plan.config.get(name):
            yield _without(name)
    for name, value in _zero(plan).items():
        if name in sizes:
            if value != sizes[name]:
                yield Change(f"remove {_ZERO}.{name}", {f"{_ZERO}.{name}": sizes[name]})
        elif value and name not in (*_PLACEMENT, *_FLAGS):
            yield _without(f"{_ZERO}.{name}")


def _without(key: str) -> Change:
    return Change(f"remove {key}", {key: ABSENT})


def _zero(plan: Plan) -> Mapping[str, Any]:
    block: Mapping[str, Any] = plan.config.get(_ZERO, {})
    return block


def _flags(plan: Plan) -> Iterator[Change]:
    for name, default in _FLAGS.items() if plan.stage else ():
        usual = plan.stage == 3 if default is None else default
        value = not _zero(plan).get(name, usual)
        yield Change(f"set {_ZERO}.{name} to {str(value).lower()}", {f"{_ZERO}.{name}": value})


def _computation(plan: Plan) -> Iterator[Change]:
    if plan.config.get("gradient_clipping"):
        yield Change("set gradient_clipping to 0", {"gradient_clipping": 0.0})
    if plan.accumulation > 1:
        yield Change("set gradient_accumulation_steps to 1", {"gradient_accumulation_steps": 1})
    if plan.config.get("scheduler"):
        yield _without("scheduler")
    for part in ("offload_param", "offload_optimizer"):
        if _zero(plan).get(part, {}).get("device", "none") != "none":
            yield _without(f"{_ZERO}.{part}")


def _code(plan: Plan) -> Iterator[Change]:
    if plan.checkpointing != "none":
        other = "reentrant" if plan.checkpointing == "non-reentrant" else "non-reentrant"
        what = f"set use_reentrant={other == 'reentrant'} in gradient checkpointing"
        yield Change(what, fields={"checkpointing": other})
        yield Change("disable gradient checkpointing", fields={"checkpointing": "none"})
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
