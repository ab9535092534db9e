"""Values that contradict transformers' TrainingArguments; HfTrainerDeepSpeedConfig compares them and raises."""

from __future__ import annotations

from collections.abc import Iterator

from ...job import AUTO
from ...rules import Match, error
from ..facts import Facts

# path in the config -> name in TrainingArguments
_COMPARED = {
    ("train_micro_batch_size_per_gpu",): "per_device_train_batch_size",
    ("gradient_accumulation_steps",): "gradient_accumulation_steps",
    ("gradient_clipping",): "max_grad_norm",
    ("optimizer", "params", "lr"): "learning_rate",
    ("optimizer", "params", "eps"): "adam_epsilon",
    ("optimizer", "params", "weight_decay"): "weight_decay",
    ("scheduler", "params", "warmup_max_lr"): "learning_rate",
    ("scheduler", "params", "warmup_num_steps"): "warmup_steps",
    ("fp16", "enabled"): "fp16",
    ("bf16", "enabled"): "bf16",
}


@error('set it to "auto"', "transformers: Please correct the following DeepSpeed config values that mismatch")
def mismatch_with_arguments(facts: Facts) -> Iterator[Match]:
    if facts.plain:
        return
    for path, name in _COMPARED.items():
        value = facts.get(*path)
        if value not in (None, AUTO) and name in facts.arguments and value != facts.arguments[name]:
            yield Match(".".join(path), f"is {value}, but {name}={facts.arguments[name]}: transformers raises an error")
    betas = facts.get("optimizer", "params", "betas")
    for index, name in enumerate(("adam_beta1", "adam_beta2")):
        if isinstance(betas, list) and len(betas) == 2 and facts.arguments.get(name, betas[index]) != betas[index]:
            what = f"is {betas}, but {name}={facts.arguments[name]}: transformers raises an error"
            yield Match("optimizer.params.betas", what)
    yield from _train_batch_size(facts)


def _train_batch_size(facts: Facts) -> Iterator[Match]:
    total, micro = facts.get("train_batch_size"), facts.arguments.get("per_device_train_batch_size")
    if facts.world_size is None or micro is None or total in (None, AUTO):
        return
    expected = facts.world_size * int(micro) * int(facts.arguments.get("gradient_accumulation_steps", 1))
    if total != expected:
        what = f"is {total}, but the arguments and the world size give {expected}: transformers raises an error"
        yield Match("train_batch_size", what)
