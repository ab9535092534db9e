"""Bugs of single releases that the config shows and no patch fixes, and keys whose default differs between releases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from packaging.version import Version

from ...job import AUTO
from ...rules import Match, all_in_range, error, note, warning
from ..facts import Facts, is_number

# releases, ZeRO stages (none: all), what DeepCompile does there
_DEEPCOMPILE: tuple[tuple[str, tuple[int, ...], str], ...] = (
    (">=0.16.6,<0.19.4", (), "it mixes the states of several graphs and engines"),
    (">=0.16.6,<0.18.0", (), "without engine.compile() it does not divide the loss by the accumulation steps"),
    ("==0.17.6", (), "without engine.compile() it never reduces gradients"),
    (">=0.17.1,<0.17.6", (), "it keeps old frames when it recompiles"),
    ("==0.17.1", (), "it hangs if inputs of different lengths are padded"),
    (">=0.16.6,<0.19.3", (3,), "code that torch does not compile sees empty parameters"),
    (">=0.16.6,<0.17.1", (), "it fails for dynamic shapes"),
    (">=0.16.6,<0.17.2", (), "it fails when it recompiles"),
    (">=0.16.6,<0.19.2", (1,), "it keeps reduced gradients in memory"),
    (">=0.16.6,<0.19.3", (3,), "it keeps gathered parameters in memory while profiling"),
    ("==0.19.3", (3,), "it keeps the parameters that guards gather in memory"),
    ("==0.16.6", (3,), "it does not schedule the backward pass"),
    (">=0.16.6,<0.17.6", (), "it frees parameters too early or too late"),
    (">=0.17.2,<0.18.0", (3,), "it keeps the gradients' buckets in memory"),
    (">=0.16.6,<0.19.1", (3,), "it gathers parameters in a poor order"),
)
_COSINE_WARMUPS = ("log", "linear")
_DOTS = 2  # of parent.name.weight


@warning(
    'upgrade to DeepSpeed 0.19.4 or later, or set "deepcompile" to false',
    *(f"#{each}" for each in (7222, 7243, 7355, 7356, 7386, 7562, 7563, 7603, 7610)),
    *(f"#{each}" for each in (8033, 8036, 8059, 8106, 8157, 8159)),
    affects={"deepspeed": ">=0.16.6,<0.19.4"},
)
def deepcompile_bugs(facts: Facts) -> Iterator[Match]:
    if facts.get("compile", "deepcompile") is not True or not facts.stage:
        return
    effects = [
        what
        for releases, stages, what in _DEEPCOMPILE
        if all_in_range({"deepspeed": releases}, facts.versions) and (not stages or facts.stage in stages)
    ]
    if effects:
        yield Match("compile.deepcompile", f"DeepCompile in this release: {'; '.join(effects)}")


@warning(
    'upgrade to DeepSpeed 0.14.3 or later, or set "compile": {"enabled": false}',
    "#5590",
    "#6718",
    affects={"deepspeed": ">=0.13.2,<0.14.3"},
)
def compiled_checkpointing(facts: Facts) -> Iterator[Match]:
    if facts.get("compile", "enabled") is True and facts.stage == 3:
        what = "torch.compile + ZeRO-3: layers under deepspeed.checkpointing.checkpoint get zero gradients"
        yield Match("compile.enabled", what)


def _optimizer_on_nvme(facts: Facts) -> bool:
    return facts.stage == 3 and facts.device("offload_optimizer") == "nvme"


@warning(
    'upgrade to DeepSpeed 0.12.4 or later, or offload to "cpu"',
    "#4702",
    "the source of 0.12.3",
    affects={"deepspeed": "<0.12.4"},
)
def nvme_gradients_lost(facts: Facts) -> Iterator[Match]:
    if _optimizer_on_nvme(facts):
        what = "of the parameters that are reduced together, only the last one gets its gradient"
        yield Match("zero_optimization.offload_optimizer.device", what)


@warning(
    'upgrade to DeepSpeed 0.18.0 or later, or offload to "cpu"',
    "#7613",
    "the source of 0.13.0",
    affects={"deepspeed": ">=0.13.0,<0.18.0"},
)
def nvme_checkpoints_overwritten(facts: Facts) -> Iterator[Match]:
    if _optimizer_on_nvme(facts) and facts.world_size != 1:
        what = "all ranks save their optimizer files under the same names: only one rank's survive"
        yield Match("zero_optimization.offload_optimizer.device", what)


@warning("set it to false, or upgrade to DeepSpeed 0.14.5 or later", "#5700", affects={"deepspeed": "<0.14.5"})
def nvme_pipeline_write(facts: Facts) -> Iterator[Match]:
    if _optimizer_on_nvme(facts) and facts.get("zero_optimization", "offload_optimizer", "pipeline_write") is True:
        what = "written buffers stay referenced, so host memory fills up"
        yield Match("zero_optimization.offload_optimizer.pipeline_write", what)


@warning(
    "use fp16, remove the key, or upgrade to DeepSpeed 0.19.6 or later",
    "#8215",
    "the source of 0.12.0: the kernel takes __half",
    affects={"deepspeed": "<0.19.6"},
)
def quantized_weights_in_bf16(facts: Facts) -> Iterator[Match]:
    if facts.stage == 3 and facts.get("zero_optimization", "zero_quantized_weights") is True and facts.on("bf16"):
        what = "the quantizer reinterprets bf16 weights as fp16: the model computes with wrong weights"
        yield Match("zero_optimization.zero_quantized_weights", what)


@warning("remove the key, or upgrade to DeepSpeed 0.13.2 or later", "#5056", affects={"deepspeed": "<0.13.2"})
def quantized_gradients_of_odd_sizes(facts: Facts) -> Iterator[Match]:
    if facts.stage == 3 and facts.get("zero_optimization", "zero_quantized_gradients") is True:
        what = "fails for a weight whose number of elements is not a multiple of twice the number of ranks"
        yield Match("zero_optimization.zero_quantized_gradients", what)


@warning(
    "set it to false, or upgrade to DeepSpeed 0.14.2 or later",
    "#5328",
    "#5434",
    affects={"deepspeed": ">=0.13.3,<0.14.2"},
)
def immediate_grad_update(facts: Facts) -> Iterator[Match]:
    for name in ("bf16", "bfloat16"):
        if facts.on("bf16") and facts.stage in (0, 1) and facts.block(name).get("immediate_grad_update") is True:
            what = "gradients in bf16 stay in memory until the next backward pass"
            if all_in_range({"deepspeed": "==0.14.1"}, facts.versions):
                what = "the backward pass fails: 'Tensor' object has no attribute '_zero'"
            yield Match(f"{name}.immediate_grad_update", f"without ZeRO, or in ZeRO-1 with fp32 accumulation, {what}")


@note("remove the key, or upgrade to DeepSpeed 0.13.0 or later", "#4946", affects={"deepspeed": ">=0.12.4,<0.13.0"})
def separate_buckets_all_reduced(facts: Facts) -> Iterator[Match]:
    if facts.stage in (1, 2) and facts.get("zero_optimization", "use_multi_rank_bucket_allreduce") is False:
        what = "has no effect: each rank's part of the gradients is still all-reduced"
        yield Match("zero_optimization.use_multi_rank_bucket_allreduce", what)


@note(
    "set a bucket larger than the largest parameter, or upgrade to DeepSpeed 0.14.5 or later",
    "#5868",
    affects={"deepspeed": "<0.14.5"},
)
def empty_reductions(facts: Facts) -> Iterator[Match]:
    zero = facts.block("zero_optimization")
    if facts.stage == 2 and zero.get("reduce_scatter") is False and is_number(zero.get("reduce_bucket_size")):
        what = "each parameter larger than the bucket causes an empty all-reduce"
        yield Match("zero_optimization.reduce_bucket_size", what)


@warning(
    "upgrade to DeepSpeed 0.19.8 or later, or use ZeRO-2", "#8443", "#8438", affects={"deepspeed": ">=0.18.9,<0.19.8"}
)
def muon_in_zero3(facts: Facts) -> Iterator[Match]:
    if facts.optimizer != "muon" or facts.stage != 3 or "optimizer" in facts.arguments:
        return
    if is_number(facts.accumulation) and facts.accumulation > 1:
        what = "Muon in ZeRO-3 updates its momentum with each micro-batch, not with their sum"
        yield Match("gradient_accumulation_steps", what)
    if all_in_range({"deepspeed": "<0.19.7"}, facts.versions):
        what = "if the model is created under zero.Init, as by transformers, Adam trains all weights instead of Muon"
        yield Match("optimizer.type", what)


@warning(
    "remove one of the two keys, if the model has frozen parameters",
    "the source of 0.12.0 to 0.19.8: _partition_param_sec quantizes an empty tensor, and copies into it",
)
def hpz_quantized_frozen_weights(facts: Facts) -> Iterator[Match]:
    name = "zero_quantized_nontrainable_weights"
    size = facts.get("zero_optimization", "zero_hpz_partition_size", default=1)
    if facts.stage == 3 and is_number(size) and size > 1 and facts.get("zero_optimization", name) is True:
        what = "with zero_hpz_partition_size, frozen weights are truncated to integers (int8 without scaling)"
        yield Match(f"zero_optimization.{name}", what)


@note(
    "create the model under deepspeed.zero.Init, or upgrade to DeepSpeed 0.19.4 or later",
    "#8189",
    "run: 0.19.3, 0.19.4",
    affects={"deepspeed": "<0.19.4"},
)
def memory_efficient_linear_ignored(facts: Facts) -> Iterator[Match]:
    if facts.stage == 3 and facts.get("zero_optimization", "memory_efficient_linear") is True:
        what = "has no effect on a model created outside zero.Init: gathered weights stay until the backward pass"
        yield Match("zero_optimization.memory_efficient_linear", what)


@note(
    "upgrade to DeepSpeed 0.19.7 or later",
    "#6694",
    "the source of 0.16.3 and 0.19.6: partition passes free_data=True on",
    affects={"deepspeed": ">=0.16.3,<0.19.7"},
)
def joined_modules_released_singly(facts: Facts) -> Iterator[Match]:
    name = "stage3_module_granularity_threshold"
    value = facts.get("zero_optimization", name)
    if facts.stage == 3 and is_number(value) and value > 0:
        what = "parameters of the joined modules are still released one by one, so little is gained"
        yield Match(f"zero_optimization.{name}", what)


@note(
    "on the CPU: remove the key, or upgrade to DeepSpeed 0.19.8 or later",
    "#8382",
    "the source of 0.12.0 and 0.19.5: no type of the CPU's tensors is known",
    affects={"deepspeed": "<0.19.8"},
)
def gradients_not_reduced_on_cpu(facts: Facts) -> Iterator[Match]:
    if facts.stage in (1, 2) and facts.get("zero_optimization", "contiguous_gradients") is False:
        what = "on the CPU accelerator with several ranks: no gradient is reduced, and the ranks' weights diverge"
        yield Match("zero_optimization.contiguous_gradients", what)


def _samples_by_difficulty(facts: Facts) -> bool:
    """Whether DeepSpeedDataSampler chooses the samples."""
    path = ("data_efficiency", "data_sampling", "curriculum_learning")
    return all(facts.get(*path[:end], "enabled") is True for end in (1, 2, 3))


@warning(
    'set "dataloader_drop_last": true, or upgrade to DeepSpeed 0.13.3 or later',
    "#5117",
    "the source of 0.13.2",
    affects={"deepspeed": "<0.13.3"},
)
def curriculum_incomplete_batch(facts: Facts) -> Iterator[Match]:
    if _samples_by_difficulty(facts) and not facts.get("dataloader_drop_last") and facts.world_size != 1:
        what = "with several ranks, the sizes in the broadcast of the last, incomplete batch differ: a hang or a crash"
        yield Match("data_efficiency.data_sampling.curriculum_learning", what)


@note("start at a difficulty with more samples", "#8520")
def curriculum_short_batches(facts: Facts) -> Iterator[Match]:
    if _samples_by_difficulty(facts):
        what = "batches are short while fewer samples than a global batch have the current difficulty"
        yield Match("data_efficiency.data_sampling.curriculum_learning", what)


@note(
    "for BLOOM: upgrade to DeepSpeed 0.14.1 or later, or disable the hybrid engine",
    "#5101",
    affects={"deepspeed": "<0.14.1"},
)
def hybrid_engine_of_bloom(facts: Facts) -> Iterator[Match]:
    if facts.get("hybrid_engine", "enabled") is True:
        what = "BLOOM's attention mask is inverted twice, so generated text is wrong"
        yield Match("hybrid_engine.enabled", what)


def _is_cosine(facts: Facts) -> bool:
    return facts.block("scheduler").get("type") == "WarmupCosineLR" and "scheduler" not in facts.arguments


@error('set "log" or "linear"', "#8151", "run: 0.18.9", affects={"deepspeed": ">=0.12.3,<0.19.4"})
def cosine_warmup_type(facts: Facts) -> Iterator[Match]:
    value = facts.block("scheduler", "params").get("warmup_type", "log")
    if _is_cosine(facts) and value not in (*_COSINE_WARMUPS, AUTO):
        yield Match("scheduler.params.warmup_type", f'"{value}" is unknown: the first step raises UnboundLocalError')


@error("set 2, or upgrade to DeepSpeed 0.12.4 or later", "#4688", "run: 0.12.3", affects={"deepspeed": "==0.12.3"})
def cosine_warmup_steps(facts: Facts) -> Iterator[Match]:
    value = facts.block("scheduler", "params").get("warmup_num_steps")
    if _is_cosine(facts) and is_number(value) and value in (0, 1):
        yield Match("scheduler.params.warmup_num_steps", f"{value}: DeepSpeed divides by its logarithm and fails")


@error("set a positive number of steps, e.g. 1000", "#8050", "the source of 0.19.2")
def loss_scale_window_zero(facts: Facts) -> Iterator[Match]:
    fp16 = facts.block("fp16")
    value = fp16.get("loss_scale_window")
    if facts.on("fp16") and not fp16.get("loss_scale") and is_number(value) and int(value) == 0:
        newer = all_in_range({"deepspeed": ">=0.19.3"}, facts.versions)
        effect = "DeepSpeed rejects it" if newer else "the job ends with a ZeroDivisionError after a few steps"
        yield Match("fp16.loss_scale_window", f"must be positive, got {value}: {effect}")


@note(
    "upgrade to DeepSpeed 0.18.3 or later, or lower the level of deepspeed.utils.logger and its handlers",
    "#7617",
    "#7576",
    "#7688",
    affects={"deepspeed": ">=0.17.6,<0.18.3"},
)
def breakdown_not_printed(facts: Facts) -> Iterator[Match]:
    silent = {"memory_breakdown": ">=0.17.6,<0.18.3", "wall_clock_breakdown": "==0.17.6"}
    for name, releases in silent.items():
        if facts.get(name) is True and all_in_range({"deepspeed": releases}, facts.versions):
            yield Match(name, "prints nothing: the log shows warnings only")


@note("upgrade to DeepSpeed 0.13.3 or later", "#4374", "#4724", affects={"deepspeed": "<0.13.3"})
def flops_not_counted(facts: Facts) -> Iterator[Match]:
    if facts.get("flops_profiler", "enabled") is True:
        what = "counts scaled_dot_product_attention and the operator @ as 0"
        if all_in_range({"deepspeed": "<0.12.4"}, facts.versions):
            what += ", and underestimates the latency of nested containers"
        yield Match("flops_profiler.enabled", what)


@warning("use DeepSpeed 0.16.3, 0.16.5 or later", "#7112", affects={"deepspeed": "==0.16.4"})
def shards_not_kept_on_host(facts: Facts) -> Iterator[Match]:
    for path in (("keep_module_on_host",), ("tensor_parallel", "keep_module_on_host")):
        if facts.get(*path) is True:
            yield Match(".".join(path), "has no effect in this release: the shards are moved to the GPU")


@warning(
    "use DeepSpeed 0.16.3, 0.16.5 or later, or load the model with its weights and omit checkpoint",
    "#7073",
    affects={"deepspeed": "==0.16.4"},
)
def autotp_of_meta_model(facts: Facts) -> Iterator[Match]:
    if not facts.inference or facts.get("checkpoint") is None or facts.get("replace_with_kernel_inject") is True:
        return
    sizes = [facts.get(name, "tp_size", default=1) for name in ("tensor_parallel", "tp")]
    if any(is_number(size) and size > 1 for size in sizes):
        what = (
            "if the model is on the meta device: AutoTP allocates its shards too early, and the checkpoint does not fit"
        )
        yield Match("checkpoint", what)


@warning(
    "set it to the number of ranks per expert group, or upgrade to DeepSpeed 0.17.6 or later",
    "#7551",
    "the source of 0.17.4",
    affects={"deepspeed": "<0.17.6"},
)
def experts_taken_for_ranks(facts: Facts) -> Iterator[Match]:
    for name in ("moe_experts", "num_experts"):
        if facts.inference and facts.get("moe", name) is not None and facts.world_size != 1:
            what = "with several ranks it is used as ep_size: with more experts than ranks, no expert group exists"
            yield Match(f"moe.{name}", what)


@warning(
    "use one group (mics_shard_size as large as the job), ZeRO-3 without the key, or DeepSpeed 0.19.2",
    "run: 0.19.6",
    "the source of 0.19.2 and 0.19.3: the rank is that of the whole job's group",
    affects={"deepspeed": ">=0.19.3,<0.19.7"},
)
def mics_groups_hang(facts: Facts) -> Iterator[Match]:
    size = facts.block("zero_optimization").get("mics_shard_size")
    if facts.stage != 3 or not is_number(size) or size < 1 or (facts.world_size or size + 1) <= size:
        return
    what = f"with more than {size} ranks, all groups but the first treat gradients as padding, and the job hangs"
    yield Match("zero_optimization.mics_shard_size", what)


@warning(
    "upgrade to DeepSpeed 0.18.9 or later, or start patterns with the parent's name: self_attn\\.q_proj",
    "#8088",
    "run: 0.18.6, 0.19.2",
    "the source of 0.18.8 and 0.18.9",
    affects={"deepspeed": ">=0.18.6,<0.18.9"},
)
def partition_patterns_match_nothing(facts: Facts) -> Iterator[Match]:
    tensor = facts.block("tensor_parallel")
    config, size = tensor.get("partition_config"), tensor.get("autotp_size")
    specs = config.get("layer_specs") if isinstance(config, Mapping) else None
    for spec in specs if isinstance(specs, list) and is_number(size) and size > 1 else ():
        for pattern in spec.get("patterns") or () if isinstance(spec, Mapping) else ():
            if isinstance(pattern, str) and pattern.count("\\.") > _DOTS and not set("?|(") & set(pattern):
                what = f"{pattern} is matched against parent.name.weight, not the whole path, and matches nothing"
                yield Match("tensor_parallel.partition_config.layer_specs", f"{what}: these weights are not split")


@warning(
    'set its type to "python", or upgrade to DeepSpeed 0.19.1 or later',
    "#8005",
    "the source of 0.17.1 and 0.19.0",
    affects={"deepspeed": ">=0.17.1,<0.19.1"},
)
def checkpoint_writer_keeps_files(facts: Facts) -> Iterator[Match]:
    writer = facts.get("checkpoint", "writer")
    if isinstance(writer, Mapping) and str(writer.get("type", "fast")).lower() == "fast":
        what = "written files stay open, so deleted checkpoints keep occupying disk space"
        yield Match("checkpoint.writer", what)


@note(
    "upgrade to DeepSpeed 0.19.4 or later; the other columns are correct",
    "#8199",
    "the source of 0.19.3: the recorded times are sorted before they are compared",
    affects={"deepspeed": "<0.19.4"},
)
def straggler_times(facts: Facts) -> Iterator[Match]:
    if facts.get("comms_logger", "enabled") is True:
        what = "if the script calls log_summary(show_straggler=True), its straggler times are too small"
        yield Match("comms_logger.enabled", what)


@note(
    "choose micro_batch_sizes with a smaller common multiple, or upgrade to DeepSpeed 0.19.6 or later",
    "#8237",
    "the source of 0.19.5",
    affects={"deepspeed": "<0.19.6"},
)
def elastic_batch_above_maximum(facts: Facts) -> Iterator[Match]:
    elastic = facts.block("elasticity")
    sizes, largest = elastic.get("micro_batch_sizes"), elastic.get("max_train_batch_size")
    if elastic.get("enabled") is not True or not isinstance(largest, int) or not isinstance(sizes, list):
        return
    multiple = math.lcm(*sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else 0
    if multiple > largest:
        what = f"{largest}, but DeepSpeed may choose {multiple}, the least common multiple of the micro_batch_sizes"
        yield Match("elasticity.max_train_batch_size", what)


@error(
    "upgrade to DeepSpeed 0.13.2 or later, or remove the key",
    "#4851",
    "#4906",
    "#4862",
    "run: the audit on two ranks: from step 2 on, gradients differ from PyTorch's on 0.13.1, not on 0.13.2",
    affects={"deepspeed": "<0.13.2"},
)
def hpz_backward_on_old_weights(facts: Facts) -> Iterator[Match]:
    size = facts.get("zero_optimization", "zero_hpz_partition_size", default=1)
    if facts.stage == 3 and isinstance(size, int) and size > 1:
        yield Match(
            "zero_optimization.zero_hpz_partition_size",
            "through 0.13.1 the backward pass uses the weights of a previous step; 0.12 also fails with ValueError: "
            "Group rank is not part of group, with torch releases since 2024",
        )


def _zenflow(facts: Facts) -> bool:
    """Whether ZenFlow steps a model in ZeRO-1 or 2."""
    on = isinstance(facts.get("zero_optimization", "zenflow"), Mapping)
    return on and facts.stage in (1, 2) and facts.device("offload_optimizer") == "cpu"


@error(
    "upgrade to DeepSpeed 0.19.2 or later, or remove zenflow",
    "#7771",
    "run: 0.18.3",
    "the source of 0.18.2, 0.19.1 and 0.19.2",
    affects={"deepspeed": ">=0.18.3,<0.19.2"},
)
def zenflow_never_selects(facts: Facts) -> Iterator[Match]:
    if _zenflow(facts):
        what = (
            "its count of micro-batches stays at -1: gradients are never selected, and the first update divides by zero"
        )
        yield Match("zero_optimization.zenflow", f"{what}: the weights become nan")


@error(
    "remove the key; ZenFlow always uses AdamW",
    "run: 0.19.8",
    "the source of 0.19.0 and 0.19.1",
    affects={"deepspeed": ">=0.19.1"},
)
def zenflow_optimizer_keys(facts: Facts) -> Iterator[Match]:
    if _zenflow(facts) and facts.optimizer in ("adam", "adamw") and "optimizer" not in facts.arguments:
        for key in ("torch_adam", "adam_w_mode"):
            if key in facts.block("optimizer", "params"):
                what = "ZenFlow passes it to torch.optim.AdamW, which raises a TypeError"
                yield Match(f"optimizer.params.{key}", what)


@note(
    "upgrade to DeepSpeed 0.18.9 or later, or use one parameter group and no scheduler",
    "#7906",
    "the source of 0.18.8",
    affects={"deepspeed": ">=0.18.0,<0.18.9"},
)
def super_offload_settings(facts: Facts) -> Iterator[Match]:
    if facts.stage == 3 and facts.get("zero_optimization", "offload_optimizer", "super_offload") is True:
        what = "weights updated on the CPU keep the initial learning rate; schedulers do not reach them"
        where = "zero_optimization.offload_optimizer.super_offload"
        yield Match(where, f"{what}. All parameter groups are merged into one, with the first group's settings")


@note('set it; "auto" uses max_grad_norm from transformers\' arguments', "#8068", "run: 0.19.2 and 0.19.3")
def gradient_clipping_default(facts: Facts) -> Iterator[Match]:
    new = facts.release >= Version("0.19.3")
    if facts.get("gradient_clipping") is None and not facts.may_only_infer:
        what = f"not set: the default is {1.0 if new else 0.0} here (0.0 through 0.19.2, 1.0 since 0.19.3)"
        yield Match("gradient_clipping", what)


@note("set it to true or false", "#8035", affects={"deepspeed": ">=0.17.1"})
def bf16_overflow_default(facts: Facts) -> Iterator[Match]:
    if facts.on("bf16") and facts.plain and facts.get("bf16", "check_grad_overflow") is None:
        what = "not set: steps with inf or nan gradients are skipped since 0.19.3, and applied through 0.19.2"
        yield Match("bf16.check_grad_overflow", what)


def _has_own_bf16_optimizer(facts: Facts) -> bool:
    """Whether BF16_Optimizer is used for bf16: without ZeRO, or with fp32 accumulation in ZeRO-1."""
    in_fp32 = facts.get("data_types", "grad_accum_dtype") in ("fp32", "float32")
    return facts.stage == 0 or (facts.stage == 1 and in_fp32)


@note(
    "upgrade to DeepSpeed 0.19.3 or later, or stop at the first loss or gradient norm that is not finite",
    "#6976",
    "run: infinite_loss_in_bf16 on 0.13.1 to 0.16.0",
    affects={"deepspeed": "<0.17.1"},
)
def bf16_unchecked_gradients(facts: Facts) -> Iterator[Match]:
    # BF16_Optimizer refuses such a step
    if facts.on("bf16") and facts.plain and facts.stage in (1, 2, 3) and not _has_own_bf16_optimizer(facts):
        what = (
            "steps with inf or nan gradients are applied, and the weights stay nan; later releases can skip such "
            "steps: bf16.check_grad_overflow"
        )
        yield Match("bf16.enabled", what)


@note(
    "use_reentrant=False for gradient checkpointing, or a different release of DeepSpeed",
    "run: a layer that two checkpointed parts use, on 0.16.4 to 0.17.1",
    affects={"deepspeed": ">=0.16.5,<0.17.1"},
)
def bf16_checkpointed_twice(facts: Facts) -> Iterator[Match]:
    if facts.on("bf16") and facts.plain and _has_own_bf16_optimizer(facts):
        what = (
            "if reentrantly checkpointed parts share a layer (applied twice, or tied embeddings), its gradients are "
            "counted more than once"
        )
        yield Match("bf16.enabled", what)
