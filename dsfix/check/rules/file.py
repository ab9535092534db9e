"""The syntax of the file, templates, and accelerate's config file."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Match, all_in_range, error, note, warning
from ..accelerate import PLACES
from ..facts import Facts, name_of
from ..placeholders import takes_text

FOR_PLACEHOLDERS = ("template", "placeholder_in_text")


@error("remove one of them", "run: 0.12.0 to 0.19.8: Duplicate keys in DeepSpeed config")
def duplicate_key(facts: Facts) -> Iterator[Match]:
    for key in facts.reading.duplicates:
        yield Match(key, "duplicate key: DeepSpeed raises a ValueError, json uses the last value")


@warning("write plain JSON", "run: accelerate 1.15.0: JSONDecodeError")
def not_plain_json(facts: Facts) -> Iterator[Match]:
    if not facts.reading.plain_json and not facts.plain and facts.has_auto and not facts.placeholders:
        what = 'not plain JSON: transformers and accelerate, which fill in "auto", cannot read it; DeepSpeed can'
        yield Match("", what)


@error(
    "set it in the DeepSpeed config file only",
    "run: accelerate 1.15.0: When using `deepspeed_config_file`, the following … will be ignored",
)
def accelerate_ignores(facts: Facts) -> Iterator[Match]:
    accelerate = facts.accelerate
    if accelerate is None or accelerate.file is None:
        return
    named = [f"deepspeed_config.{key}" for key in PLACES if key in accelerate.block]
    if accelerate.others.get("mixed_precision") is not None:
        named.append("mixed_precision")
    for where in named:
        yield Match(where, "cannot be combined with deepspeed_config_file: accelerate raises a ValueError")


@warning("set distributed_type: DEEPSPEED", "accelerate's launcher: use_deepspeed")
def accelerate_not_deepspeed(facts: Facts) -> Iterator[Match]:
    accelerate = facts.accelerate
    if accelerate is not None and str(accelerate.others.get("distributed_type", "DEEPSPEED")).upper() != "DEEPSPEED":
        kind = accelerate.others["distributed_type"]
        yield Match("distributed_type", f"is {kind}: accelerate uses deepspeed_config with DEEPSPEED only")


@error('add "zero_optimization": {"stage": 0}', "run: accelerate 1.15.0: Please specify the ZeRO optimization config")
def accelerate_without_zero(facts: Facts) -> Iterator[Match]:
    if facts.accelerate is not None and "zero_optimization" not in facts.config:
        yield Match("zero_optimization", "missing: accelerate requires it in a DeepSpeed config")


@warning(
    "set num_processes to machines times GPUs, or give it to `accelerate launch`",
    "accelerate 1.15.0: prepare_deepspeed_cmd_env divides num_processes by num_machines",
    "run: torch 2.13.0: torchrun --nproc_per_node 0; the source of 0.18.9: --num_gpus 0 selects nothing",
)
def accelerate_processes(facts: Facts) -> Iterator[Match]:
    accelerate = facts.accelerate
    if accelerate is None or accelerate.processes is None or accelerate.world_size == accelerate.processes:
        return
    total, machines = accelerate.processes, accelerate.machines
    effect = f"{total // machines} per machine are started"
    if total < machines:
        effect = "torchrun (standard) fails with an AssertionError, deepspeed (pdsh and others) uses all GPUs"
    yield Match("num_processes", f"the total over all machines, {total} for {machines}: {effect}")


@note(
    "set it to true",
    "the source of accelerate 0.34.2 and 1.15.0: set_deepspeed_weakref, GatheredParameters, get_state_dict",
    "the source of transformers 5.23.0: Trainer.save_model",
)
def accelerate_zero3(facts: Facts) -> Iterator[Match]:
    accelerate = facts.accelerate
    if accelerate is None or facts.stage != 3:
        return
    if accelerate.block.get("zero3_init_flag") is False:
        what = "false: accelerate's GatheredParameters gathers nothing"
        if not all_in_range({"accelerate": ">=1.0"}, facts.versions):
            what += "; before accelerate 1.0 each process also loads the whole model before it is partitioned"
        yield Match("deepspeed_config.zero3_init_flag", what)
    if accelerate.file is None and not accelerate.block.get("zero3_save_16bit_model"):
        what = "not set: accelerator.get_state_dict raises a ValueError, Trainer saves partitioned weights only"
        yield Match("deepspeed_config.zero3_save_16bit_model", what)


def _listed(facts: Facts) -> str:
    return ", ".join(f"{name_of(path)} ({text})" for path, text in facts.placeholders.items())


def _rejects(facts: Facts) -> bool:
    return any(not takes_text(path, facts.known.keys) for path in facts.placeholders)


@error(
    "fill them in, and check the result",
    "run: 0.12.0 to 0.19.8: for a number a string is rejected, for a boolean rejected or taken for true",
)
def template(facts: Facts) -> Iterator[Match]:
    if facts.placeholders and _rejects(facts):
        yield Match("", f"this is a template: fill in the placeholders in {_listed(facts)}")


@warning("fill them in", "the source of 0.12.0 to 0.19.8: nothing is replaced in a config")
def placeholder_in_text(facts: Facts) -> Iterator[Match]:
    if facts.placeholders and not _rejects(facts):
        yield Match("", f"placeholders, which DeepSpeed would use as values: {_listed(facts)}")
