"""The training around the config, as described by `--model-args` or the call of deepspeed.initialize."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Match, all_in_range, error, warning
from ..facts import Facts

CASTS_BUFFERS = {"deepspeed": "<0.19.2"}  # since then only zero.Init does


@error(
    "load the model without device_map", "transformers: DeepSpeed Zero-3 is not compatible with passing a `device_map`"
)
def zero3_device_map(facts: Facts) -> Iterator[Match]:
    value = str(facts.arguments.get("device_map", "none"))
    if facts.stage == 3 and value.lower() not in ("none", ""):
        what = f"ZeRO-3 is incompatible with device_map={value}: transformers raises an error"
        yield Match("zero_optimization.stage", what)


@warning(
    "call engine.save_checkpoint(…, exclude_frozen_parameters=True)",
    "the source of 0.12.0 to 0.19.8; transformers sets it for PeftModel only",
)
def frozen_base_saved(facts: Facts) -> Iterator[Match]:
    if facts.arguments.get("lora") == "own":
        yield Match("checkpoint", "LoRA without PeftModel: each checkpoint includes the frozen base model")


@warning(
    "call deepspeed.utils.set_z3_leaf_modules(model, [MoE block class]), or set leaf_module (since 0.18.0)", "#4966"
)
def moe_without_leaf_modules(facts: Facts) -> Iterator[Match]:
    leaf_modules = facts.block("zero_optimization", "leaf_module")
    if facts.accelerate is not None and facts.accelerate.block.get("deepspeed_moe_layer_cls_names"):
        return
    if facts.stage == 3 and facts.arguments.get("moe") and not any(leaf_modules.values()):
        what = "ZeRO-3 hangs if a rank routes no token to an expert that other ranks use: NCCL timeout"
        yield Match("zero_optimization.stage", what)


@warning(
    "put `import dsfix` on the first line of the script, or upgrade to DeepSpeed 0.19.3",
    "#8148",
    "the reproduction of the patch",
    affects={"deepspeed": "<0.19.3", "torch": ">=2.5"},
    patches=("zero3_checkpoint_recompute",),
)
def zero3_checkpointing_recompute(facts: Facts) -> Iterator[Match]:
    arguments = facts.arguments
    recomputes = arguments.get("gradient_checkpointing") and arguments.get("use_reentrant") is not True
    if facts.stage == 3 and recomputes and arguments.get("lora"):
        what = "ZeRO-3 with frozen parameters and non-reentrant checkpointing: CheckpointError, recomputed shape [0]"
        yield Match("zero_optimization.stage", what)


@warning(
    "call deepspeed.init_distributed() before anything else creates a process group of one rank",
    "#8089",
    affects={"deepspeed": "<0.19.4"},
)
def single_rank_group(facts: Facts) -> Iterator[Match]:
    launched = facts.arguments.get("launched")
    if facts.stage == 3 and facts.world_size == 1 and isinstance(launched, int) and launched > 1:
        what = f"{launched} processes, but a process group of one rank: each process holds the whole model"
        yield Match("zero_optimization.stage", what)


@warning(
    "upgrade to DeepSpeed 0.14.2 or later, or use ZeRO-1 or bf16",
    "#5411",
    "the source of 0.12.0: the flat groups have no mark of tensor parallelism",
    affects={"deepspeed": "<0.14.2"},
)
def fp16_norm_of_one_rank(facts: Facts) -> Iterator[Match]:
    ranks = facts.arguments.get("tensor_parallel")
    if facts.on("fp16") and facts.stage == 0 and facts.job.clips and isinstance(ranks, int) and ranks > 1:
        what = (
            "fp16 without ZeRO, with tensor parallelism: the norm includes only the first rank's gradients, so "
            "clipping is too weak"
        )
        yield Match("gradient_clipping", what)


@warning(
    "upgrade to DeepSpeed 0.19.8 or later", "the source of 0.12.0, 0.19.7 and 0.19.8", affects={"deepspeed": "<0.19.8"}
)
def float8_cast(facts: Facts) -> Iterator[Match]:
    for name in ("bf16", "fp16"):
        if facts.on(name) and facts.arguments.get("float8") is True:
            what = f"DeepSpeed casts the model's float8 parameters to {name}, without applying their scales"
            yield Match(f"{name}.enabled", what)


@warning(
    (
        "upgrade to DeepSpeed 0.19.8 or later, or load these buffers again after deepspeed.initialize, in fp32; "
        "dsfix's half_routing_bias keeps those of MoE routers"
    ),
    "the source of 0.12.0, 0.19.1, 0.19.2, 0.19.7 and 0.19.8",
    affects={"deepspeed": "<0.19.8"},
)
def fp32_buffers_cast(facts: Facts) -> Iterator[Match]:
    whole = all_in_range(CASTS_BUFFERS, facts.versions)
    for name in ("bf16", "fp16"):
        if facts.on(name) and facts.arguments.get("fp32_buffers") is True and (whole or facts.stage == 3):
            what = f"buffers that the model keeps in fp32 are cast to {name}"
            yield Match(f"{name}.enabled", what if whole else f"{what} under zero.Init")
