""" "auto" in a config: the values that transformers and accelerate put there.

Facts: transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig and TrainingArguments (5.23.0),
accelerate.utils.dataclasses.DeepSpeedPlugin (1.15.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ..check.facts import AUTO, Facts, name_of
from .shrink import HIDDEN

#: TrainingArguments' defaults, by the names of `--model-args`.
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
# place -> the arguments that its value is made of
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
    # of the model that is trained, as transformers does it
    f"{_ZERO}.reduce_bucket_size": HIDDEN * HIDDEN,
    f"{_ZERO}.stage3_prefetch_bucket_size": int(0.9 * HIDDEN * HIDDEN),
    f"{_ZERO}.stage3_param_persistence_threshold": 10 * HIDDEN,
}
_MADE: Mapping[str, Callable[..., Any]] = {
    "optimizer.params.betas": lambda first, second: [first, second],
    "scheduler.params.warmup_num_steps": lambda steps: max(1, steps),
}


def arguments(facts: Facts) -> dict[str, Any]:
    """TrainingArguments as far as they are known: the given ones, accelerate's mixed_precision, else the defaults."""
    precision = facts.accelerate.others.get("mixed_precision") if facts.accelerate is not None else None
    own = {precision: True} if precision in ("bf16", "fp16") else {}
    return {**TRAINING_ARGUMENTS, **own, **facts.arguments}


def fill(facts: Facts, config: dict[str, Any]) -> list[str]:
    """Puts values in place of "auto", of the batch size by `shrink`. Returns what was assumed, in sentences."""
    known = arguments(facts)
    assumed: dict[str, Any] = {}
    for path, value in facts.walk():
        name = name_of(path)
        if value != AUTO or name not in {*_ARGUMENTS, *_FIXED}:
            continue
        block = config
        for part in path[:-1]:
            block = block[part]
        if name in _FIXED:
            block[path[-1]] = _FIXED[name]
            continue
        names = _ARGUMENTS[name]
        values = [known[each] for each in names]
        block[path[-1]] = _MADE[name](*values) if name in _MADE else values[0]
        assumed.update({each: known[each] for each in names if known[each] is TRAINING_ARGUMENTS[each]})
    if not assumed:
        return []
    said = ", ".join(f"{name}={str(value).lower()}" for name, value in assumed.items())
    return [f'for "auto" the defaults of transformers\' TrainingArguments: {said} (--model-args)']
