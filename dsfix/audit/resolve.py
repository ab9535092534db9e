"""From the user's config file and the command-line options to a Plan, with a note on every change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..check.checking import check
from ..rules import Finding, Level
from . import auto, limits, shrink
from .draft import Draft, NotAudited, Options
from .learning_rates import rates
from .plan import Plan, Unsupported, clipping
from .recipe import recipe

_ZERO = "zero_optimization"


@dataclass(frozen=True)
class ResolvedConfig:
    """notes: what was assumed, dropped or shrunk. suspects: the patches for bugs that this config triggers."""

    plan: Plan
    notes: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()


def resolve(file: str, options: Options) -> ResolvedConfig:
    """Returns the Plan for a config file: JSON, hjson or accelerate's YAML. Raises ValueError with a sentence."""
    checked = check(file, given=options.arguments)
    _require_no_errors(file, checked.findings)
    draft = Draft(checked.facts, options)
    for step in _STEPS:
        step(draft)
    suspects = [patch_id for finding in checked.findings for patch_id in finding.patches]
    return ResolvedConfig(draft.plan, tuple(draft.notes), tuple(dict.fromkeys(suspects)))


def _require_no_errors(file: str, findings: list[Finding]) -> None:
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    if errors:
        listed = "".join(f"\n  {error.where}: {error.what}" for error in errors)
        raise NotAudited(f"{file} has errors, which `python -m dsfix check {file}` explains:{listed}")


def _choose(draft: Draft) -> None:
    """Sets the plan's fields from the options, else from --model-args, else from accelerate's file."""
    facts, options = draft.facts, draft.options
    model_arguments = facts.arguments
    checkpointing = None
    if model_arguments.get("gradient_checkpointing"):
        checkpointing = "reentrant" if model_arguments.get("use_reentrant") else "non-reentrant"
    lora = "lora" in model_arguments
    zero_init = options.zero_init
    if zero_init is None:
        by_accelerate = facts.accelerate is not None and bool(facts.accelerate.block.get("zero3_init_flag"))
        zero_init = facts.stage == 3 and (facts.has_auto or by_accelerate)
    requested_ranks = options.ranks or facts.world_size or Plan.ranks
    ranks = options.ranks or min(requested_ranks, options.most_ranks)
    chosen: dict[str, Any] = {
        "ranks": ranks,
        "universal_ranks": max(1, ranks // 2),
        "steps": options.steps,
        "device": options.device,
        "freeze": options.freeze or ("base" if lora else None),
        "checkpointing": checkpointing,
        "backwards": options.backwards or ("dict" if facts.filled_in else None),
        "zero_init": zero_init,
        "lora": lora,
        "schedule": options.schedule,
        "phases": options.phases,
    }
    draft.set(**{name: value for name, value in chosen.items() if value is not None})
    if ranks < requested_ranks:
        draft.notes.append(f"{ranks} of {requested_ranks} ranks")
    if facts.filled_in and not options.backwards:
        draft.notes.append("the model returns a dictionary, as those of transformers do (--backwards)")


def _old_form(draft: Draft) -> None:
    """zero_optimization as a flag, and a stage that is a flag or a float."""
    if isinstance(draft.config.get(_ZERO), bool):
        draft.config[_ZERO] = {"stage": int(draft.config[_ZERO])}
    block = draft.config.get(_ZERO)
    if isinstance(block, dict) and "stage" in block:
        block["stage"] = int(block["stage"])


def _offload(draft: Draft) -> None:
    for part in ("offload_optimizer", "offload_param"):
        if draft.facts.device(part) == "nvme":
            block = draft.config[_ZERO]
            pin_memory_only = {name: value for name, value in block[part].items() if name == "pin_memory"}
            block[part] = {**pin_memory_only, "device": "cpu"}
            draft.config.pop("aio", None)
            draft.notes.append(f"{part} to cpu: the audit does not write to NVMe")


def _clipping(draft: Draft) -> None:
    if "gradient_clipping" not in draft.config:
        release = draft.facts.release
        draft.config["gradient_clipping"] = clipping(release)
        draft.notes.append(f"gradient_clipping {clipping(release)}, the default of deepspeed {release}")


def _optimizer(draft: Draft) -> None:
    """If the config has none: the one that transformers passes, with offload replaced by DeepSpeed's by accelerate."""
    facts, config = draft.facts, draft.config
    own = facts.arguments.get("optimizer")
    if own or "optimizer" in config:
        draft.set(optimizer=str(own or ""))
        return
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
        draft.notes.append("no optimizer in the config: DeepSpeedCPUAdam, as accelerate uses for AdamW with offload")
        return
    config.setdefault("zero_allow_untested_optimizer", True)
    draft.set(optimizer="AdamW")
    draft.notes.append("no optimizer in the config: torch.optim.AdamW, as by transformers (--model-args optimizer=…)")


def _model(draft: Draft) -> None:
    plan = draft.plan
    if plan.zero_init and draft.options.zero_init is None:
        draft.notes.append("the model is built under zero.Init, as by transformers (--no-zero-init)")
    if draft.facts.arguments.get("moe"):
        draft.notes.append("no experts: the audit's model has none")


def _skipped_step(draft: Draft) -> None:
    if draft.plan.precision == "fp16":
        draft.set(skip_step=draft.plan.steps // 2)


def _require_reference(draft: Draft) -> None:
    try:
        rates(draft.plan, [recipe(draft.plan).options["lr"]])
    except Unsupported as error:
        raise NotAudited(str(error)) from None


_STEPS: tuple[Callable[[Draft], None], ...] = (
    limits.refuse,
    _choose,
    limits.drop,
    auto.fill,
    _old_form,
    _offload,
    shrink.sizes,
    _clipping,
    _optimizer,
    shrink.batches,
    shrink.schedule,
    shrink.loss_scale,
    _model,
    _skipped_step,
    _require_reference,
)
