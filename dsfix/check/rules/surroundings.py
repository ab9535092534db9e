"""The training around the config, as far as `--model-args` or the call of deepspeed.initialize tells of it."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..facts import Facts

_ROOM = 0.6  # of a GPU's memory that weights may take where activations and adapters need the rest


def _device_map(facts: Facts) -> Iterator[Found]:
    value = str(facts.arguments.get("device_map", "none"))
    if facts.stage == 3 and value.lower() not in ("none", ""):
        yield Found("zero_optimization.stage", f"device_map={value} and ZeRO-3 exclude each other: transformers stops")


def _low_memory(facts: Facts) -> Iterator[Found]:
    if facts.stage == 3 and facts.arguments.get("low_cpu_mem_usage") is True:
        yield Found("zero_optimization.stage", "low_cpu_mem_usage and ZeRO-3 exclude each other in older transformers")


def _own_lora(facts: Facts) -> Iterator[Found]:
    if facts.arguments.get("lora") == "own":
        what = "LoRA without PeftModel: each checkpoint holds the frozen base as well"
        yield Found("checkpoint", what)


def _experts(facts: Facts) -> Iterator[Found]:
    named = facts.block("zero_optimization", "leaf_module")
    if facts.accelerate is not None and facts.accelerate.block.get("deepspeed_moe_layer_cls_names"):
        return
    if facts.stage == 3 and facts.arguments.get("moe") and not any(named.values()):
        what = "ZeRO-3 waits for experts that no token goes to on some rank: NCCL timeout"
        yield Found("zero_optimization.stage", what)


def _stage_2_fits(facts: Facts) -> Iterator[Found]:
    parameters, memory = facts.number("parameters"), facts.number("gpu_memory")
    if facts.stage != 3 or not facts.arguments.get("lora") or parameters is None or memory is None:
        return
    weights = 2 * parameters / 1e9
    if weights < _ROOM * memory:
        what = f"with LoRA the frozen weights take {weights:.0f} of {memory:.0f} GB: stage 2 fits, and gathers nothing"
        yield Found("zero_optimization.stage", what)


def _recompute(facts: Facts) -> Iterator[Found]:
    arguments = facts.arguments
    recomputes = arguments.get("gradient_checkpointing") and arguments.get("use_reentrant") is not True
    if facts.stage == 3 and recomputes and arguments.get("lora"):
        what = "ZeRO-3, frozen parameters and non-reentrant checkpointing: CheckpointError, recomputed shape [0]"
        yield Found("zero_optimization.stage", what)


RULES = (
    Rule(
        id="zero3_device_map",
        level=Level.ERROR,
        find=_device_map,
        remedy="load the model without device_map",
        evidence=("transformers: DeepSpeed Zero-3 is not compatible with passing a `device_map`",),
    ),
    Rule(
        id="zero3_low_cpu_mem_usage",
        level=Level.WARNING,
        find=_low_memory,
        remedy="leave low_cpu_mem_usage out: ZeRO-3 partitions the weights while they are loaded",
        evidence=("transformers 4: DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True`",),
    ),
    Rule(
        id="frozen_base_saved",
        level=Level.WARNING,
        find=_own_lora,
        remedy="engine.save_checkpoint(…, exclude_frozen_parameters=True)",
        evidence=("the source of 0.12.0 to 0.19.8; transformers sets it for PeftModel only",),
    ),
    Rule(
        id="moe_without_leaf_modules",
        level=Level.WARNING,
        find=_experts,
        remedy="deepspeed.utils.set_z3_leaf_modules(model, [the block's class]); from 0.18.0 on also leaf_module",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/4966",),
    ),
    Rule(
        id="lora_fits_stage_2",
        level=Level.NOTE,
        find=_stage_2_fits,
        remedy="set stage 2",
        evidence=("2 bytes per frozen parameter",),
    ),
    Rule(
        id="zero3_checkpointing_recompute",
        level=Level.WARNING,
        affects={"deepspeed": "<0.19.3", "torch": ">=2.5"},
        find=_recompute,
        remedy="`import dsfix` on the first line of the script, or DeepSpeed 0.19.3",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8148", "the reproduction of the patch"),
        patches=("zero3_checkpoint_recompute",),
    ),
)
