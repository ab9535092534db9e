"""The values that transformers and accelerate put in place of "auto" in a config.

Sources: transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig and TrainingArguments (5.23.0),
accelerate.utils.dataclasses.DeepSpeedPlugin (1.15.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ..check.facts import Facts, name_of
from ..job import AUTO
from .draft import Draft
from .plan import WIDTH

#: Defaults of TrainingArguments, by their names in `--model-args`.
TRAINING_ARGUMENTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "warmup_steps": 0,
    "bf16": False,
    "fp16": False,
}
_ZERO = "zero_optimization"
# key -> the arguments that its value comes from
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("max_grad_norm",),
    "optimizer.params.lr": ("learning_rate",),
    "optimizer.params.betas": ("adam_beta1", "adam_beta2"),
    "optimizer.params.eps": ("adam_epsilon",),
    "optimizer.params.weight_decay": ("weight_decay",),
    "scheduler.params.warmup_max_lr": ("learning_rate",),
    "scheduler.params.warmup_num_steps": ("warmup_steps",),
    "fp16.enabled": ("fp16",),
    "bf16.enabled": ("bf16",),
    "bfloat16.enabled": ("bf16",),
}
_FIXED: Mapping[str, Any] = {
    "scheduler.params.warmup_min_lr": 0,
    "amp.enabled": False,
    f"{_ZERO}.stage": 2,
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": False,
    f"{_ZERO}.offload_optimizer.device": "none",
    f"{_ZERO}.offload_optimizer.nvme_path": None,
    f"{_ZERO}.offload_param.device": "none",
    f"{_ZERO}.offload_param.nvme_path": None,
    # computed from the audit's model, as transformers computes them
    f"{_ZERO}.reduce_bucket_size": WIDTH * WIDTH,
    f"{_ZERO}.stage3_prefetch_bucket_size": int(0.9 * WIDTH * WIDTH),
    f"{_ZERO}.stage3_param_persistence_threshold": 10 * WIDTH,
}
_CONVERSIONS: Mapping[str, Callable[..., Any]] = {
    "optimizer.params.betas": lambda first, second: [first, second],
    "scheduler.params.warmup_num_steps": lambda steps: max(1, steps),
}


def arguments(facts: Facts) -> dict[str, Any]:
    """Returns TrainingArguments: those given, else accelerate's mixed_precision, else the defaults."""
    precision = facts.accelerate.others.get("mixed_precision") if facts.accelerate is not None else None
    own = {precision: True} if precision in ("bf16", "fp16") else {}
    return {**TRAINING_ARGUMENTS, **own, **facts.arguments}


def fill(draft: Draft) -> None:
    """Replaces "auto" by values, except for batch sizes and the schedule's steps, which `shrink` sets."""
    known = arguments(draft.facts)
    assumed: dict[str, Any] = {}
    for path, value in draft.facts.walk():
        name = name_of(path)
        if value != AUTO or name not in {*_ARGUMENTS, *_FIXED}:
            continue
        block = draft.config
        for part in path[:-1]:
            block = block[part]
        if name in _FIXED:
            block[path[-1]] = _FIXED[name]
            continue
        names = _ARGUMENTS[name]
        values = [known[each] for each in names]
        block[path[-1]] = _CONVERSIONS[name](*values) if name in _CONVERSIONS else values[0]
        assumed.update({each: known[each] for each in names if known[each] is TRAINING_ARGUMENTS[each]})
    if assumed:
        defaults = ", ".join(f"{name}={str(value).lower()}" for name, value in assumed.items())
        draft.notes.append(f'"auto" takes the defaults of transformers\' TrainingArguments: {defaults} (--model-args)')
