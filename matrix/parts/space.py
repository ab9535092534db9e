"""The space of configs that `initialize` is tried on: factors, levels, and which levels go together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsfix.audit.plan import Plan
from dsfix.versions import satisfies

Row = Mapping[str, str]

#: Common to all configs; sizes fit the audit's model.
BASE: Mapping[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "steps_per_print": 1_000_000,
}


@dataclass(frozen=True)
class Level:
    """What a level adds to the config (merged key by key) and to the Plan's other fields.

    releases: those that have the level; on others the factor's plain level is used.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    releases: str = ""


@dataclass(frozen=True)
class Constraint:
    """Which levels go together: `holds` is called with the levels of `factors`, in order; on `releases` only."""

    factors: tuple[str, ...]
    holds: Callable[..., bool]
    why: str
    releases: str = ""


def _zero(**options: Any) -> Level:
    return Level({"zero_optimization": options})


def _optimizer(kind: str, **params: Any) -> Level:
    return Level({"optimizer": {"type": kind, "params": params}})


def _scheduler(kind: str, **params: Any) -> Level:
    return Level({"scheduler": {"type": kind, "params": params}})


def _plan(**fields: Any) -> Level:
    return Level(plan=fields)


_STEPS = 4  # optimizer steps; one may be skipped, and the checkpoint is written after half of them
_UNSET = Level()
_ADAM = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
_WARMUP = {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 2}

#: The first level is the plain one, which minimal combinations omit.
FACTORS: Mapping[str, Mapping[str, Level]] = {
    "stage": {"0": _UNSET, **{str(stage): _zero(stage=stage) for stage in (1, 2, 3)}},
    "precision": {
        "fp32": _UNSET,
        "bf16": Level({"bf16": {"enabled": True}}),
        "fp16": Level({"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}}),
    },
    "accumulation": {
        "1": _UNSET,
        "2": Level({"gradient_accumulation_steps": 2}),
        "4": Level({"gradient_accumulation_steps": 4}),
    },
    "ranks": {"1": _plan(ranks=1), "2": _plan(ranks=2)},
    "clipping": {"off": _UNSET, "on": Level({"gradient_clipping": 0.1})},
    "optimizer": {
        "AdamW": _optimizer("AdamW", torch_adam=True, **_ADAM),
        "Adam with L2": _optimizer("Adam", torch_adam=True, adam_w_mode=False, **_ADAM),
        "DeepSpeed's Adam": _optimizer("AdamW", torch_adam=False, **_ADAM),
        "SGD": _optimizer("SGD", lr=0.05, momentum=0.9, weight_decay=0.1),
        "client's AdamW": _plan(optimizer="AdamW"),
        "client's SGD": _plan(optimizer="SGD"),
        "client's Adagrad": _plan(optimizer="Adagrad"),
    },
    "scheduler": {
        "none": _UNSET,
        "WarmupLR": _scheduler("WarmupLR", **_WARMUP),
        "WarmupDecayLR": _scheduler("WarmupDecayLR", total_num_steps=_STEPS, **_WARMUP),
        "WarmupCosineLR": _scheduler("WarmupCosineLR", total_num_steps=_STEPS, warmup_num_steps=2),
        "OneCycle": _scheduler(
            "OneCycle", cycle_min_lr=0.001, cycle_max_lr=0.01, cycle_first_step_size=2, cycle_momentum=False
        ),
    },
    "offload": {
        "none": _UNSET,
        "optimizer": _zero(offload_optimizer={"device": "cpu"}),
        "optimizer, param": _zero(offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"}),
    },
    "buckets": {
        "large": _zero(reduce_bucket_size=1_000_000, allgather_bucket_size=1_000_000),
        "small": _zero(reduce_bucket_size=500, allgather_bucket_size=500),
    },
    "overlap_comm": {"unset": _UNSET, "true": _zero(overlap_comm=True), "false": _zero(overlap_comm=False)},
    "contiguous_gradients": {"unset": _UNSET, "false": _zero(contiguous_gradients=False)},
    "reduce_scatter": {"unset": _UNSET, "false": _zero(reduce_scatter=False)},
    "round_robin_gradients": {"unset": _UNSET, "true": _zero(round_robin_gradients=True)},
    "use_multi_rank_bucket_allreduce": {"unset": _UNSET, "false": _zero(use_multi_rank_bucket_allreduce=False)},
    "prescaling": {
        "unset": _UNSET,
        "predivide": Level({"prescale_gradients": True, "gradient_predivide_factor": 2.0}),
        "prescale": Level({"prescale_gradients": True}),
    },
    "communication_data_type": {"unset": _UNSET, "fp32": Level({"communication_data_type": "fp32"})},
    "grad_accum_dtype": {"unset": _UNSET, "fp32": Level({"data_types": {"grad_accum_dtype": "fp32"}})},
    "sub_groups": {"one": _UNSET, "several": _zero(sub_group_size=700)},
    "partitioning": {
        "parameters persist": _UNSET,
        "all": _zero(
            stage3_param_persistence_threshold=0,
            stage3_prefetch_bucket_size=0,
            stage3_max_live_parameters=0,
            stage3_max_reuse_distance=0,
        ),
        "hpZ": _zero(stage3_param_persistence_threshold=0, zero_hpz_partition_size=2),
    },
    "zero_init": {"no": _UNSET, "yes": _plan(zero_init=True)},
    "groups": {"one": _plan(groups=False), "several": _plan(groups=True)},
    "trained": {"all": _plan(freeze="none"), "part": _plan(freeze="part"), "LoRA": _plan(freeze="base", lora=True)},
    "left out": {"nothing": _plan(left_out=False), "a module, in every second step": _plan(left_out=True)},
    "checkpointing": {each: _plan(checkpointing=each) for each in ("none", "reentrant", "non-reentrant")},
    "backwards": {
        **{each: _plan(backwards=each) for each in ("loss", "dict", "two")},
        "tensor": Level(plan={"backwards": "tensor"}, releases=">=0.18.3"),  # its own backward
    },
    "loss scale": {"constant": _UNSET, "grows": Level({"fp16": {"loss_scale_window": 2}})},
    "skipped step": {"none": _UNSET, "inf": _plan(skip_step=1)},
    "pinned": {"no": _UNSET, "yes": _zero(offload_optimizer={"pin_memory": True})},
    "schedule": {
        "none": _plan(schedule=""),
        **{each: _plan(schedule=each) for each in ("late", "ahead", "random:1")},
    },
    "save": {
        "no": _plan(phases=()),
        "resume": _plan(phases=("resume",)),
        "universal": _plan(phases=("universal",), universal_ranks=1),
        "export": _plan(phases=("zero_to_fp32", "16bit")),
    },
}


def _stages(factor: str, plain: str, stages: str, why: str) -> Constraint:
    """`factor` has a level other than `plain` only at these stages."""
    return Constraint(("stage", factor), lambda stage, level: level == plain or stage in stages, why)


CONSTRAINTS: tuple[Constraint, ...] = (
    _stages("offload", "none", "123", "offload is ZeRO's"),
    Constraint(
        ("stage", "offload"), lambda stage, level: "param" not in level or stage == "3", "parameters: ZeRO-3 only"
    ),
    _stages("buckets", "large", "123", "ZeRO's option"),
    _stages("overlap_comm", "unset", "123", "ZeRO's option"),
    _stages("contiguous_gradients", "unset", "23", "read by ZeRO-2 and 3"),
    _stages("reduce_scatter", "unset", "123", "ZeRO's option"),
    _stages("round_robin_gradients", "unset", "12", "read by ZeRO-1 and 2"),
    _stages("use_multi_rank_bucket_allreduce", "unset", "12", "read by ZeRO-1 and 2"),
    _stages("sub_groups", "one", "3", "ZeRO-3 only"),
    _stages("partitioning", "parameters persist", "3", "ZeRO-3 only"),
    _stages("zero_init", "no", "3", "ZeRO-3 only"),
    _stages("schedule", "none", "123", "without ZeRO all work is on one stream"),
    Constraint(
        ("offload", "pinned"), lambda offload, level: level == "no" or offload != "none", "host memory of offload"
    ),
    Constraint(
        ("partitioning", "ranks"), lambda level, ranks: level != "hpZ" or ranks == "2", "hpZ partitions over two ranks"
    ),
    Constraint(
        ("stage", "reduce_scatter", "prescaling"),
        lambda stage, scatter, level: level == "unset" or stage == "0" or scatter == "false",
        "ZeRO refuses it with reduce_scatter",
    ),
    Constraint(
        ("precision", "skipped step"),
        lambda precision, level: level == "none" or precision != "fp32",
        "DeepSpeed looks for inf and nan in half precision only",
    ),
    Constraint(
        ("precision", "loss scale"), lambda precision, level: level == "constant" or precision == "fp16", "fp16 only"
    ),
    Constraint(
        ("stage", "grad_accum_dtype"), lambda stage, level: level == "unset" or stage != "0", "refused without ZeRO"
    ),
    Constraint(("stage", "backwards"), lambda stage, level: level != "tensor" or stage != "0", "refused without ZeRO"),
    Constraint(
        ("precision", "backwards"),
        lambda precision, level: level != "tensor" or precision != "fp16",
        "the loss has to be scaled first",
    ),
    Constraint(
        ("precision", "communication_data_type"),
        lambda precision, level: level == "unset" or precision != "fp32",
        "fp32 already",
    ),
    Constraint(
        ("precision", "grad_accum_dtype"),
        lambda precision, level: level == "unset" or precision == "bf16",
        "an option of bf16",
    ),
    # what differs, and no patch changes it
    Constraint(
        ("partitioning",),
        lambda level: level != "hpZ",
        "https://github.com/deepspeedai/DeepSpeed/pull/4862: counts ranks until torch raises another error",
        "<0.13.0",
    ),
    Constraint(
        ("optimizer", "save"),
        lambda optimizer, save: save != "universal" or ("Adam" in optimizer and "Adagrad" not in optimizer),
        "ds_to_universal reads Adam's moments: universal_checkpoint_not_of_adam",
    ),
    Constraint(
        ("stage", "backwards"),
        lambda stage, backwards: backwards != "two" or stage not in "12",
        "only the last of several backward passes counts: zero12_several_backwards_drop, off by default",
        ">=0.17.6",
    ),
    Constraint(
        ("precision", "save", "grad_accum_dtype"),
        lambda precision, save, dtype: save != "export" or precision != "bf16" or dtype == "unset",
        "zero_to_fp32 refuses checkpoints of BF16_Optimizer: zero_to_fp32_of_bf16_optimizer",
    ),
    Constraint(
        ("save",),
        lambda save: save != "export",
        "a checkpoint's own zero_to_fp32.py: zero_to_fp32_copy_weights_only",
        "<0.16.0",
    ),
)


def plain() -> dict[str, str]:
    """The first levels."""
    return {name: next(iter(levels)) for name, levels in FACTORS.items()}


def broken(row: Row, release: str) -> bool:
    """Whether levels of the row do not go together."""
    return any(
        not each.holds(*(row[name] for name in each.factors))
        for each in CONSTRAINTS
        if satisfies(each.releases, release)
    )


def plan(row: Row, release: str) -> Plan:
    """What the audit runs for a row; levels that the release does not have are plain."""
    config: dict[str, Any] = copy.deepcopy(dict(BASE))
    fields: dict[str, Any] = {}
    for name, levels in FACTORS.items():
        level = levels[row[name]]
        level = level if satisfies(level.releases, release) else levels[plain()[name]]
        _merge(config, level.config)
        fields.update(level.plan)
    if row["stage"] == "0":
        config.pop("zero_optimization", None)
    return Plan(config=config, steps=_STEPS, **fields)


def _merge(config: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            _merge(config.setdefault(key, {}), value)
        else:
            config[key] = value
