""" "auto", which transformers and accelerate fill in and DeepSpeed itself does not know, and values that contradict
transformers' TrainingArguments: HfTrainerDeepSpeedConfig compares them and raises."""

from __future__ import annotations

from collections.abc import Iterator

from ...job import AUTO
from ...rules import Match, error, warning
from ..facts import Facts, name_of
from ..placeholders import Path

_BUCKETS = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
# filled in by transformers' HfTrainerDeepSpeedConfig and accelerate's DeepSpeedPlugin
_FILLED = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("fp16.enabled", "bf16.enabled", "amp.enabled", "amp.opt_level"),
    *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"scheduler.params.{name}" for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")),
    *(f"zero_optimization.{name}" for name in ("stage", "stage3_gather_16bit_weights_on_model_save", *_BUCKETS)),
    *(f"zero_optimization.offload_{part}.{key}" for part in ("optimizer", "param") for key in ("device", "nvme_path")),
}
# keys for which DeepSpeed itself defines "auto"
_NATIVE = {"data_types.keep_in_fp32_modules", "expert_parallel.preset_model"}
# read without a config model, which would drop "auto"
_UNMODELLED = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("gradient_predivide_factor", "steps_per_print", "communication_data_type", "wall_clock_breakdown"),
)
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


def _auto_paths(facts: Facts) -> Iterator[Path]:
    for path, value in facts.walk():
        if value == AUTO and name_of(path) not in _NATIVE:
            yield path


@error("set the stage", "run: 0.12.0 to 0.19.8")
def auto_stage(facts: Facts) -> Iterator[Match]:
    if facts.plain and facts.get("zero_optimization", "stage") == AUTO:
        yield Match("zero_optimization.stage", '"auto" is silently dropped: the stage is 0 and ZeRO is off')


@error('set a value; only transformers and accelerate fill in "auto"', "run: 0.14.2 to 0.19.8")
def auto_number(facts: Facts) -> Iterator[Match]:
    for path in _auto_paths(facts) if facts.plain else ():
        if _fails(path):
            yield Match(
                name_of(path), '"auto" makes DeepSpeed raise a TypeError or ValueError that does not name the key'
            )


@warning("set a number, or remove the key", "run: 0.12.0 to 0.19.8: 5e8 elements for reduce_bucket_size")
def auto_bucket(facts: Facts) -> Iterator[Match]:
    for name in _BUCKETS:
        if facts.plain and facts.get("zero_optimization", name) == AUTO:
            what = '"auto" is dropped: the default is used, not a value based on the model\'s hidden size'
            yield Match(f"zero_optimization.{name}", what)


def _unfilled_paths(facts: Facts) -> Iterator[Path]:
    for path in _auto_paths(facts) if not facts.plain else ():
        if name_of(path) not in _FILLED and facts.known.keys.find(*path) is not None:
            yield path


def _is_filled_in(facts: Facts) -> bool:
    """Whether accelerate or transformers must read the config first: DeepSpeed alone fails on some "auto" in it."""
    return facts.accelerate is not None or any(_fails(path) for path in _auto_paths(facts))


def _fails(path: Path) -> bool:
    """Whether DeepSpeed cannot read "auto" there."""
    return name_of(path) in _UNMODELLED or path[:2] in (("optimizer", "params"), ("scheduler", "params"))


@error("set a value, or remove the key", "run: accelerate 1.15.0: DeepSpeedPlugin.fill_match raises ValueError")
def auto_unresolved(facts: Facts) -> Iterator[Match]:
    for path in _unfilled_paths(facts) if _is_filled_in(facts) else ():
        what = 'neither transformers nor accelerate fills in "auto" here: accelerate raises a ValueError'
        yield Match(name_of(path), what)


@warning(
    "set a value, or remove the key",
    "run: accelerate 1.15.0: DeepSpeedPlugin.fill_match raises ValueError",
    "the source of 0.12.0 to 0.19.8: DeepSpeedConfigModel drops it",
)
def auto_perhaps_unresolved(facts: Facts) -> Iterator[Match]:
    if facts.may_only_infer or _is_filled_in(facts):
        return
    for path in _unfilled_paths(facts):
        above = facts.known.keys.find(*path[:-1])
        alone = "; DeepSpeed alone drops it and uses the default" if above is not None and above.closed else ""
        what = f'neither transformers nor accelerate fills in "auto" here: accelerate raises a ValueError{alone}'
        yield Match(name_of(path), what)


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
