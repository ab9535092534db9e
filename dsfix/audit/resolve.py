"""The user's config file, and what the command's options tell, as a Plan; and what was assumed, left out or shrunk."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from packaging.version import Version

from ..check import arguments as model_arguments
from ..check.checking import check
from ..check.facts import Facts
from ..rules import Finding, Level
from . import auto, shrink
from .defaults import clipping
from .limits import DROPPED, REFUSED, Limit, experts
from .plan import Plan
from .recipe import recipe
from .schedule import rates
from .unsupported import Unsupported

MOST_RANKS = 8
_MUON_GROUPS = Version("0.19.2")
_ZERO = "zero_optimization"


class NotAudited(ValueError):
    """Why this config is not audited: one sentence, or one per line."""


@dataclass(frozen=True)
class Options:
    """What the command line says, as in Plan; None where it says nothing. most_ranks: that the device has room for."""

    ranks: int | None = None
    steps: int | None = None
    device: str | None = None
    optimizer: str | None = None
    freeze: str | None = None
    checkpointing: str | None = None
    backwards: str | None = None
    zero_init: bool | None = None
    lora: bool = False
    moe: int | None = None
    ep_size: int | None = None
    phases: tuple[str, ...] | None = None
    arguments: Mapping[str, model_arguments.Value] = field(default_factory=dict)
    most_ranks: int = MOST_RANKS


@dataclass(frozen=True)
class Resolved:
    """notes: what was assumed, left out or shrunk, in sentences. sizes: what DeepSpeed's default sizes would be in the
    plan. suspects: the patches of bugs that this very config meets.
    """

    plan: Plan
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    suspects: tuple[str, ...] = ()


def resolve(file: str, options: Options) -> Resolved:
    """The Plan for a config file: JSON, hjson or accelerate's YAML.

    Raises:
        NotAudited: the file has an error, or asks for what cannot be audited.
        ValueError: one sentence: the file cannot be read.
    """
    given = dict(options.arguments)
    if options.optimizer:
        given["optimizer"] = options.optimizer
    checked = check(file, given=given)
    _require_no_errors(file, checked.findings)
    facts = checked.facts
    config = copy.deepcopy(facts.config)
    for limit in REFUSED:
        if limit.holds(facts.get(*limit.path)):
            raise NotAudited(f"{'.'.join(limit.path)} is not audited: {limit.why}")
    plan = _from_arguments(Plan(config), facts, options)
    wanted = options.ranks or facts.world_size or Plan.ranks
    notes = [f"{plan.ranks} of {wanted} ranks"] if plan.ranks < wanted else []
    notes += _drop(config, facts)
    notes += auto.fill(facts, config)
    notes += _zero(config, facts)
    notes += _clipping(config, facts)
    plan, said = _optimizer(plan, config, facts, given)
    notes += said
    notes += shrink.batches(facts, config, auto.arguments(facts), plan.ranks)
    notes += shrink.schedule(config, plan.steps)
    notes += shrink.loss_scale(config)
    if plan.zero_init and options.zero_init is None:
        notes.append("the model is built under zero.Init, as transformers does it (--no-zero-init)")
    if facts.arguments.get("moe") and not plan.moe:
        notes.append("no experts: those of transformers' models are plain modules (--moe: DeepSpeed's own layer)")
    if plan.precision == "fp16":
        plan = replace(plan, skip_step=plan.steps // 2)
    if why := experts(plan):
        raise NotAudited(why)
    try:
        rates(plan, [recipe(plan).options["lr"]])
    except Unsupported as error:
        raise NotAudited(str(error)) from None
    suspects = [patch_id for finding in checked.findings for patch_id in finding.patches]
    return Resolved(plan, tuple(notes), shrink.defaults(facts), tuple(dict.fromkeys(suspects)))


def _require_no_errors(file: str, findings: list[Finding]) -> None:
    errors = [each for each in findings if each.level is Level.ERROR]
    if errors:
        told = "".join(f"\n  {each.where}: {each.what}" for each in errors)
        raise NotAudited(f"{file} has errors, which `python -m dsfix check {file}` explains:{told}")


def _from_arguments(plan: Plan, facts: Facts, options: Options) -> Plan:
    """What the options say, else --model-args, else accelerate's file."""
    given = facts.arguments
    checkpointing = None
    if given.get("gradient_checkpointing"):
        checkpointing = "reentrant" if given.get("use_reentrant") else "non-reentrant"
    lora = options.lora or "lora" in given
    zero_init = options.zero_init
    if zero_init is None:
        zero_init = facts.stage == 3 and (facts.has_auto or _accelerate_says_init(facts))
    chosen: dict[str, Any] = {
        "ranks": options.ranks or min(facts.world_size or plan.ranks, options.most_ranks),
        "steps": options.steps,
        "device": options.device,
        "freeze": options.freeze or ("base" if lora else None),
        "checkpointing": options.checkpointing or checkpointing,
        "backwards": options.backwards,
        "zero_init": zero_init,
        "lora": lora,
        "moe": options.moe,
        "ep_size": options.ep_size,
        "phases": options.phases,
    }
    plan = replace(plan, **{name: value for name, value in chosen.items() if value is not None})
    return replace(plan, universal_ranks=max(1, plan.ranks // 2))


def _accelerate_says_init(facts: Facts) -> bool:
    return facts.accelerate is not None and bool(facts.accelerate.block.get("zero3_init_flag"))


def _drop(config: dict[str, Any], facts: Facts) -> list[str]:
    dropped: list[Limit] = []
    for limit in DROPPED:
        if limit.holds(facts.get(*limit.path)):
            block = config
            for name in limit.path[:-1]:
                block = block[name]
            del block[limit.path[-1]]
            dropped.append(limit)
    said = []
    for why, limits in groupby(sorted(dropped, key=lambda each: each.why), key=lambda each: each.why):
        said.append(f"without {', '.join('.'.join(each.path) for each in limits)}: {why}")
    return said


def _zero(config: dict[str, Any], facts: Facts) -> list[str]:
    if isinstance(config.get(_ZERO), bool):  # an old form
        config[_ZERO] = {"stage": int(config[_ZERO])}
    block = config.get(_ZERO)
    if not isinstance(block, dict):
        return []
    if "stage" in block:
        block["stage"] = int(block["stage"])
    notes = []
    for part in ("offload_optimizer", "offload_param"):
        if facts.device(part) == "nvme":
            kept = {name: value for name, value in block[part].items() if name == "pin_memory"}
            block[part] = {**kept, "device": "cpu"}
            notes.append(f"{part} to cpu: the audit writes to no NVMe disk")
            config.pop("aio", None)
    return notes + (shrink.zero(facts, config) if block.get("stage") else [])


def _clipping(config: dict[str, Any], facts: Facts) -> list[str]:
    if "gradient_clipping" in config:
        return []
    config["gradient_clipping"] = clipping(facts.release)
    return [f"gradient_clipping {config['gradient_clipping']}, which is the default of deepspeed {facts.release}"]


def _optimizer(plan: Plan, config: dict[str, Any], facts: Facts, given: Mapping[str, Any]) -> tuple[Plan, list[str]]:
    """Where the config names none, the one that transformers passes; accelerate makes DeepSpeed's of it for offload."""
    own = given.get("optimizer")
    written = facts.get("optimizer", "type")
    if not own and str(written).lower() == "muon" and facts.release < _MUON_GROUPS:
        why = f"one parameter group: deepspeed {facts.release} takes none of the script's own with Muon"
        return replace(plan, optimizer="", groups=False), [why]
    if own or "optimizer" in config:
        return replace(plan, optimizer=str(own or "")), []
    offloaded = facts.stage and facts.device("offload_optimizer") != "none"
    if offloaded and config.get("zero_force_ds_cpu_optimizer", True):
        known = auto.arguments(facts)
        config["optimizer"] = {
            "type": "AdamW",
            "params": {
                "lr": known["learning_rate"],
                "betas": [known["adam_beta1"], known["adam_beta2"]],
                "eps": known["adam_epsilon"],
                "weight_decay": known["weight_decay"],
            },
        }
        return plan, ["the config has no optimizer: DeepSpeedCPUAdam, which accelerate takes for AdamW with offload"]
    config.setdefault("zero_allow_untested_optimizer", True)
    said = "the config has no optimizer: torch.optim.AdamW is passed, as transformers does it (--optimizer)"
    return replace(plan, optimizer="AdamW"), [said]
