"""Every rule of `check`: a config with a finding, and similar ones without."""

import math
from dataclasses import dataclass, field

import pytest
from packaging.specifiers import SpecifierSet

from dsfix import rules, versions
from dsfix.catalogue import registry
from dsfix.check import checking
from dsfix.check.arguments import checked

NEWEST = "0.19.8"
BATCH = {"train_micro_batch_size_per_gpu": 2}
ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
OFFLOAD = {"device": "cpu"}
TORCH_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}}


class Whole(dict):
    """A config to which no batch size is added."""


def zero(stage, **keys):
    return {"zero_optimization": {"stage": stage, **keys}}


@dataclass
class Case:
    """A config with a finding at `where`; `near`: similar configs without that finding."""

    rule: str
    config: dict
    where: str
    near: list
    release: str = NEWEST
    around: dict = field(default_factory=dict)


@dataclass
class Near:
    """A near miss: a config, with its own release and arguments of `check`."""

    config: dict
    release: str = NEWEST
    around: dict = field(default_factory=dict)


PLAIN = {"plain": True}
CLIPPING = {"gradient_clipping": "auto"}  # which DeepSpeed alone does not read
INFERS = zero(3, stage3_max_live_parameters="auto", offload_param=OFFLOAD)
INFERENCE = {"dtype": "fp16", "replace_with_kernel_inject": True, "tensor_parallel": {"tp_size": 2}}
TEMPLATE = {
    "train_batch_size": "${BATCH}",
    "zero_optimization": {"stage": "ZERO_STAGE"},
    "fp16": {"enabled": "{{ h }}"},
}
AUTO_BF16 = {"bf16": {"enabled": "auto"}}
BOTH = {"fp16": {"enabled": True}, "bf16": {"enabled": True}}
AUTOCAST = {"bf16": {"enabled": True}, "torch_autocast": {"enabled": True}}
FP32_ACCUMULATION = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
AUTOCAST_FP16 = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
LOSS_SCALE = {"bf16": {"enabled": True, "loss_scale": 0}}
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
UNTESTED = {**SGD, **zero(2)}
MAX_NORM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "max_grad_norm": 1.0}}}
PRODUCT = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}


FP16_CLIPPED = {"fp16": {"enabled": True}, "gradient_clipping": 1.0}
MUON = {"optimizer": {"type": "Muon", "params": {"lr": 0.01}}}
DEEPCOMPILE = {"compile": {"deepcompile": True}}
NVME = {"device": "nvme", "nvme_path": "/nvme"}
CURRICULUM = {
    "data_efficiency": {
        "enabled": True,
        "data_sampling": {"enabled": True, "curriculum_learning": {"enabled": True, "curriculum_metrics": {}}},
    }
}


def model(**arguments):
    return {"given": checked(arguments)}


def cosine(**params):
    return {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 100, **params}}}


def one_cycle(**params):
    return {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, **params}}}


def elastic(sizes, largest):
    return {"elasticity": {"enabled": True, "micro_batch_sizes": sizes, "max_train_batch_size": largest}}


def partitioned(pattern, size=2):
    specs = {"layer_specs": [{"patterns": [pattern], "partition_type": "column"}]}
    return {"tensor_parallel": {"autotp_size": size, "partition_config": specs}}


CASES = [
    # fp16, bf16, torch_autocast
    Case(
        "auto_precision",
        AUTO_BF16,
        "bf16.enabled",
        [
            Near(AUTO_BF16),
            Near(AUTO_BF16, release="0.17.0", around=PLAIN),
            Near({**AUTO_BF16, "fp16": {"enabled": True}}, around=PLAIN),
            Near({"bf16": {"enabled": False}}, around=PLAIN),
        ],
        release="0.17.1",
        around=PLAIN,
    ),
    Case(
        "auto_precision_taken_for_true",
        AUTO_BF16,
        "bf16.enabled",
        [Near(AUTO_BF16, release="0.17.1", around=PLAIN), Near({"bf16": {"enabled": True}}, "0.17.0", PLAIN)],
        release="0.17.0",
        around=PLAIN,
    ),
    Case(
        "fp16_and_bf16",
        BOTH,
        "fp16.enabled",
        [
            Near({"fp16": {"enabled": False}, "bf16": {"enabled": True}}),
            Near({**AUTO_BF16, "fp16": {"enabled": "auto"}}),
        ],
    ),
    Case("fp16_and_bf16", {**AUTO_BF16, "fp16": {"enabled": "auto"}}, "fp16.enabled", [], "0.17.0", PLAIN),
    Case(
        "precision_and_torch_autocast",
        AUTOCAST,
        "torch_autocast.enabled",
        [Near(AUTOCAST, "0.18.3"), Near({"torch_autocast": {"enabled": True}}, "0.18.2")],
        release="0.18.2",
    ),
    Case(
        "precision_beside_torch_autocast",
        AUTOCAST,
        "torch_autocast.enabled",
        [Near(AUTOCAST, "0.18.2"), Near({**AUTOCAST, "bf16": {"enabled": False}}, "0.18.3")],
        release="0.18.3",
    ),
    Case(
        "autocast_unscaled_without_zero",
        AUTOCAST_FP16,
        "torch_autocast.dtype",
        [
            Near(AUTOCAST_FP16, "0.17.1"),
            Near(AUTOCAST_FP16, "0.18.0"),
            Near({**AUTOCAST_FP16, **zero(1)}, "0.17.6"),
            Near({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "0.17.6"),
        ],
        release="0.17.6",
    ),
    Case(
        "autocast_unscaled_zero3",
        {**AUTOCAST_FP16, **zero(3)},
        "torch_autocast.dtype",
        [Near({**AUTOCAST_FP16, **zero(3)}, "0.17.6"), Near({**AUTOCAST_FP16, **zero(2)}, "0.17.5")],
        release="0.17.5",
    ),
    Case(
        "bf16_fp32_accumulation_ignored",
        FP32_ACCUMULATION,
        "data_types.grad_accum_dtype",
        [
            Near(FP32_ACCUMULATION, "0.17.5"),
            Near(FP32_ACCUMULATION, "0.18.5"),
            Near({**FP32_ACCUMULATION, **zero(1)}, "0.18.4"),
            Near({**FP32_ACCUMULATION, "bf16": {"enabled": False}}, "0.18.4"),
        ],
        release="0.18.4",
    ),
    Case(
        "loss_scale_under_bf16",
        LOSS_SCALE,
        "bf16.loss_scale",
        [Near(LOSS_SCALE, "0.17.0"), Near({"fp16": {"enabled": True, "loss_scale": 0}}, "0.17.1")],
        release="0.17.1",
    ),
    Case("loss_scale_under_bf16", {"bf16": {**LOSS_SCALE["bf16"], "hysteresis": 2}}, "bf16.loss_scale", []),
    Case("loss_scale_under_bf16_ignored", LOSS_SCALE, "bf16.loss_scale", [Near(LOSS_SCALE, "0.17.1")], "0.17.0"),
    Case(
        "quoted_precision",
        {"bf16": {"enabled": "false"}},
        "bf16.enabled",
        [Near({"bf16": {"enabled": "false"}}, "0.17.1"), Near({"bf16": {"enabled": False}}, "0.17.0")],
        release="0.17.0",
    ),
    # "auto"
    Case(
        "auto_stage",
        zero("auto"),
        "zero_optimization.stage",
        [Near(zero("auto")), Near(zero(2), NEWEST, PLAIN)],
        around=PLAIN,
    ),
    Case(
        "auto_number",
        {"gradient_clipping": "auto"},
        "gradient_clipping",
        [Near({"gradient_clipping": "auto"}), Near({"gradient_clipping": 1.0}, around=PLAIN)],
        around=PLAIN,
    ),
    Case(
        "auto_number",
        {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}},
        "optimizer.params.lr",
        [Near(ADAM, around=PLAIN)],
        around=PLAIN,
    ),
    Case(
        "auto_bucket",
        zero(2, reduce_bucket_size="auto"),
        "zero_optimization.reduce_bucket_size",
        [Near(zero(2, reduce_bucket_size="auto")), Near(zero(2, reduce_bucket_size=5e8), around=PLAIN)],
        around=PLAIN,
    ),
    Case(
        "auto_unresolved",
        {**zero(2, allgather_bucket_size="auto"), **CLIPPING},
        "zero_optimization.allgather_bucket_size",
        [
            Near({**zero(2, reduce_bucket_size="auto"), **CLIPPING}),
            Near({"pipeline": {"stages": "auto"}, **CLIPPING}),
            Near({"data_types": {"keep_in_fp32_modules": "auto"}, **CLIPPING}),
            Near(zero(2, allgather_bucket_size="auto")),  # for DeepSpeed alone, perhaps
        ],
    ),
    Case(
        "auto_perhaps_unresolved",
        zero(2, allgather_bucket_size="auto"),
        "zero_optimization.allgather_bucket_size",
        [
            Near({**zero(2, allgather_bucket_size="auto"), **CLIPPING}),
            Near(zero(2, allgather_bucket_size="auto"), around=PLAIN),
            Near(INFERS),
        ],
    ),
    Case(
        "auto_perhaps_unresolved",
        {**INFERS, **ADAM},
        "zero_optimization.stage3_max_live_parameters",
        [Near(zero(3, stage3_max_live_parameters=1e9))],
    ),
    # the batch
    Case(
        "no_batch_size",
        {"train_micro_batch_size_per_gpu": None},
        "train_micro_batch_size_per_gpu",
        [Near({}, around=PLAIN), Near({"train_micro_batch_size_per_gpu": None})],
        around=PLAIN,
    ),
    Case("no_batch_size", Whole(CLIPPING), "train_micro_batch_size_per_gpu", []),
    Case("no_batch_size", Whole(ADAM), "train_micro_batch_size_per_gpu", [], around={"in_job": True}),
    Case(
        "no_batch_size_in_file",
        Whole(ADAM),
        "train_micro_batch_size_per_gpu",
        [Near(ADAM), Near(Whole(ADAM), around=PLAIN), Near(Whole({**ADAM, "elasticity": {"enabled": True}}))],
    ),
    Case(
        "batch_not_a_number",
        {"train_micro_batch_size_per_gpu": "8"},
        "train_micro_batch_size_per_gpu",
        [Near({"train_micro_batch_size_per_gpu": 8}), Near({"train_micro_batch_size_per_gpu": "auto"})],
    ),
    Case("batch_not_a_number", {"gradient_accumulation_steps": 0}, "gradient_accumulation_steps", []),
    Case(
        "batch_product",
        PRODUCT,
        "train_batch_size",
        [Near(PRODUCT, around={"world_size": 4}), Near(PRODUCT), Near({**PRODUCT, "train_batch_size": "auto"})],
        around={"world_size": 8},
    ),
    Case("batch_product", {**PRODUCT, "train_batch_size": 15}, "train_batch_size", []),
    Case(
        "batch_product",
        {"train_batch_size": 10, "train_micro_batch_size_per_gpu": None},
        "train_batch_size",
        [Near({"train_batch_size": 10, "train_micro_batch_size_per_gpu": None}, around={"world_size": 5})],
        around={"world_size": 4},
    ),
    Case("batch_product", {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, "train_batch_size", []),
    # values
    Case(
        "fractional_integer",
        zero(3, stage3_prefetch_bucket_size=15099494.4),
        "zero_optimization.stage3_prefetch_bucket_size",
        [Near(zero(3, stage3_prefetch_bucket_size=15099494.4), "0.14.5"), Near(zero(3, sub_group_size=1e9))],
        release="0.15.0",
    ),
    Case(
        "string_for_a_number",
        zero(2, reduce_bucket_size="5e8"),
        "zero_optimization.reduce_bucket_size",
        [Near(zero(2, reduce_bucket_size="500000000")), Near(zero(2, overlap_comm="true"))],
    ),
    Case("string_for_a_number", zero(2, overlap_comm="maybe"), "zero_optimization.overlap_comm", []),
    Case(
        "quoted_value",
        {"zero_allow_untested_optimizer": "false"},
        "zero_allow_untested_optimizer",
        [Near({"zero_allow_untested_optimizer": False})],
    ),
    Case(
        "quoted_value",
        {"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}},
        "optimizer.params.lr",
        [Near(ADAM), Near({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})],
    ),
    Case("quoted_value", {"gradient_clipping": "1.0"}, "gradient_clipping", [Near({"gradient_clipping": 1})]),
    Case(
        "block_wanted", {"fp16": True}, "fp16", [Near({"fp16": {"enabled": True}}), Near({"zero_optimization": True})]
    ),
    Case("block_wanted", {"zero_optimization": 2}, "zero_optimization", []),
    Case(
        "block_wanted",
        zero(3, offload_param=True),
        "zero_optimization.offload_param",
        [Near(zero(3, offload_param=None))],
    ),
    Case(
        "unknown_stage",
        zero(4),
        "zero_optimization.stage",
        [
            Near(zero(3)),
            Near(zero("2")),
            Near(zero("auto")),
            Near({**zero([0, 1, 2]), "autotuning": {"enabled": True}}),
        ],
    ),
    Case("unknown_stage", {**zero([0, 1]), "autotuning": {"enabled": False}}, "zero_optimization.stage", []),
    Case("unknown_stage", zero("2"), "zero_optimization.stage", [Near(zero("2"), "0.15.0")], "0.14.5"),
    Case(
        "unknown_offload_device",
        zero(3, offload_param={"device": "cuda"}),
        "zero_optimization.offload_param.device",
        [Near(zero(3, offload_param={"device": "nvme", "nvme_path": "/nvme"})), Near(zero(3, offload_param={}))],
    ),
    Case(
        "empty_bucket",
        zero(0, reduce_bucket_size=0),
        "zero_optimization.reduce_bucket_size",
        [Near(zero(0, reduce_bucket_size=0), "0.19.5"), Near(zero(2, allgather_bucket_size=0))],
        release="0.19.6",
    ),
    Case("empty_bucket", zero(2, reduce_bucket_size=0), "zero_optimization.reduce_bucket_size", [], "0.19.5"),
    Case(
        "not_finite",
        {"gradient_clipping": math.inf},
        "gradient_clipping",
        [Near({"steps_per_print": math.inf}), Near({"gradient_clipping": 1e30})],
    ),
    # keys
    Case(
        "rejected_key",
        zero(2, reduce_bucketsize=5e8),
        "zero_optimization.reduce_bucketsize",
        [Near({"activation_checkpointing": {"cpu_checkpoint": True}}), Near({"bf16": {"x": 1}}, "0.17.0")],
    ),
    Case("removed_key", {"amp": {"enabled": False}}, "amp", [Near({"amp": {"enabled": False}}, "0.19.7")]),
    Case(
        "removed_key",
        zero(3, mics_shard_size=-1),
        "zero_optimization.mics_shard_size",
        [Near(zero(3, mics_shard_size=-1), "0.19.6")],
        release="0.19.7",
    ),
    Case(
        "misspelled_key",
        {"gradient_cliping": 1.0},
        "gradient_cliping",
        [Near({"gradient_clipping": 1.0}), Near({"my_own_note": 1}), Near({"_comment": "gradient_cliping"})],
    ),
    Case(
        "misspelled_key",
        {"activation_checkpointing": {"cpu_checkpoint": True}},
        "activation_checkpointing.cpu_checkpoint",
        [],
    ),
    Case(
        "misplaced_key",
        {"offload_optimizer": OFFLOAD},
        "offload_optimizer",
        [
            Near(zero(2, offload_optimizer=OFFLOAD)),
            Near({"my_own_note": 1}),
            Near({"aio": {"enabled": True}}),  # many blocks have that key
            Near({"amp": {"enabled": True, "loss_scale": "dynamic"}}, "0.19.6"),  # apex reads it
        ],
    ),
    Case(
        "key_of_another_release",
        {"tensor_parallel": {"autotp_size": 2}},
        "tensor_parallel",
        [Near({"tensor_parallel": {"autotp_size": 2}}, "0.16.4")],
        release="0.16.3",
    ),
    Case("unread_key", {"my_own_note": 1}, "my_own_note", [Near({"_comment": 1}), Near({"gradient_cliping": 1.0})]),
    Case("unread_key", dict.fromkeys(("num-layers", "norm", "split", "hidden", "seq"), 1), "", []),
    Case(
        "unread_key",
        {"pipeline": {"num_layers": 12}},
        "pipeline.num_layers",
        [
            Near({"pipeline": {"activation_checkpoint_interval": 1, "use_reentrant": False}}),
            Near({"pipeline": {"pipe_partitioned": True}}, "0.12.3"),
            Near({"checkpoint": {"load_universal": True}, "data_types": {"grad_accum_dtype": "fp32"}}),
            Near({"data_efficiency": {"data_routing": {"random_ltd": {"total_layer_num": 12}}}}),
        ],
    ),
    Case(
        "misspelled_key",
        {"pipeline": {"activation_checkpointing_interval": 1}},
        "pipeline.activation_checkpointing_interval",
        [Near({"pipeline": {"activation_checkpoint_interval": 1}})],
    ),
    Case(
        "key_of_another_release",
        {"pipeline": {"grad_partitioned": False}},
        "pipeline.grad_partitioned",
        [Near({"pipeline": {"grad_partitioned": False}}, "0.12.3")],
        release="0.12.2",
    ),
    Case(
        "unused_key",
        {"pipeline": {"stages": 4}},
        "pipeline.stages",
        [Near({"pipeline": {"stages": "auto", "partition": "best", "seed_layers": False}})],
    ),
    # configs of deepspeed.init_inference
    Case(
        "inference_config",
        Whole(INFERENCE),
        "",
        [
            Near(Whole(INFERENCE), around=PLAIN),
            Near(Whole(INFERENCE), around={"in_job": True}),
            Near({**INFERENCE, **BATCH}),
            Near(Whole({"tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}})),
            Near(INFERS),
        ],
    ),
    Case("inference_config", Whole({"tensor_parallel": {"tp_size": 2}}), "", [], "0.14.2"),
    Case("inference_config", Whole({"tp": {"tp_size": 2}, "dtype": "fp16"}), "", []),
    Case("inference_config", Whole({"dtype": "fp16", "mp_size": 2}), "", [], "0.12.0"),
    Case(
        "rejected_key",
        Whole({**INFERENCE, "max_out_token": 512}),
        "max_out_token",
        [Near(Whole({**INFERENCE, "max_out_tokens": 512})), Near({"dtype": "fp16", "max_out_token": 512})],
    ),
    Case(
        "rejected_key",
        Whole({**INFERENCE, "tensor_parallel": {"tp_size": 2, "tp_grain_size": 64}}),
        "tensor_parallel.tp_grain_size",
        [Near(Whole({**INFERENCE, "tensor_parallel": {"tp_size": 2, "tp_grain_size": 64}}), "0.16.2")],
        release="0.16.1",
    ),
    Case(
        "string_for_a_number",
        Whole({**INFERENCE, "max_out_tokens": "many"}),
        "max_out_tokens",
        [Near(Whole({**INFERENCE, "max_out_tokens": 512}))],
    ),
    # bugs of single releases
    Case(
        "deepcompile_bugs",
        {**zero(3), **DEEPCOMPILE},
        "compile.deepcompile",
        [
            Near({**zero(3), **DEEPCOMPILE}, "0.19.4"),
            Near({**zero(0), **DEEPCOMPILE}, "0.19.3"),
            Near({**zero(3), "compile": {"deepcompile": False}}, "0.19.3"),
        ],
        release="0.19.3",
    ),
    Case("deepcompile_bugs", {**zero(1), **DEEPCOMPILE}, "compile.deepcompile", [], release="0.16.6"),
    Case(
        "compiled_checkpointing",
        {**zero(3), "compile": {"enabled": True}},
        "compile.enabled",
        [Near({**zero(3), "compile": {"enabled": True}}, "0.14.3"), Near({"compile": {"enabled": True}}, "0.14.2")],
        release="0.14.2",
    ),
    Case(
        "nvme_gradients_lost",
        zero(3, offload_optimizer=NVME),
        "zero_optimization.offload_optimizer.device",
        [
            Near(zero(3, offload_optimizer=NVME), "0.12.4"),
            Near(zero(3, offload_optimizer=OFFLOAD), "0.12.3"),
            Near(zero(3, offload_param=NVME), "0.12.3"),
        ],
        release="0.12.3",
    ),
    Case(
        "nvme_checkpoints_overwritten",
        zero(3, offload_optimizer=NVME),
        "zero_optimization.offload_optimizer.device",
        [
            Near(zero(3, offload_optimizer=NVME), "0.18.0"),
            Near(zero(3, offload_optimizer=NVME), "0.12.6"),
            Near(zero(3, offload_optimizer=NVME), "0.17.6", {"world_size": 1}),
        ],
        release="0.17.6",
    ),
    Case(
        "zenflow_never_selects",
        zero(2, offload_optimizer=OFFLOAD, zenflow={}),
        "zero_optimization.zenflow",
        [
            Near(zero(2, offload_optimizer=OFFLOAD, zenflow={}), "0.19.2"),
            Near(zero(2, offload_optimizer=OFFLOAD, zenflow={}), "0.18.2"),
            Near(zero(3, offload_optimizer=OFFLOAD, zenflow={}), "0.19.1"),
            Near(zero(2, offload_optimizer=OFFLOAD, zenflow=None), "0.19.1"),
        ],
        release="0.18.3",
    ),
    Case(
        "zenflow_optimizer_keys",
        {
            **zero(1, offload_optimizer=OFFLOAD, zenflow={}),
            "optimizer": {"type": "Adam", "params": {"adam_w_mode": True}},
        },
        "optimizer.params.adam_w_mode",
        [
            Near({**zero(1, offload_optimizer=OFFLOAD, zenflow={}), **TORCH_ADAM}, "0.19.0"),
            Near({**zero(3, offload_optimizer=OFFLOAD, zenflow={}), **TORCH_ADAM}),
            Near({**zero(1, offload_optimizer=OFFLOAD), **TORCH_ADAM}),
            Near({**zero(1, offload_optimizer=OFFLOAD, zenflow={}), **ADAM}),
        ],
    ),
    Case(
        "super_offload_settings",
        zero(3, offload_optimizer={**OFFLOAD, "super_offload": True}),
        "zero_optimization.offload_optimizer.super_offload",
        [
            Near(zero(3, offload_optimizer={**OFFLOAD, "super_offload": True}), "0.18.9"),
            Near(zero(3, offload_optimizer=OFFLOAD), "0.18.8"),
            Near(zero(2, offload_optimizer={**OFFLOAD, "super_offload": True}), "0.18.8"),
        ],
        release="0.18.8",
    ),
    Case(
        "mics_groups_hang",
        zero(3, mics_shard_size=2),
        "zero_optimization.mics_shard_size",
        [
            Near(zero(3, mics_shard_size=2), "0.19.2"),
            Near(zero(3, mics_shard_size=2), "0.19.6", {"world_size": 2}),
            Near(zero(3, mics_shard_size=-1), "0.19.6"),
            Near(zero(2, mics_shard_size=2), "0.19.6"),
        ],
        release="0.19.3",
        around={"world_size": 4},
    ),
    Case(
        "partition_patterns_match_nothing",
        partitioned(r".*\.self_attn\.q_proj\.weight$"),
        "tensor_parallel.partition_config.layer_specs",
        [
            Near(partitioned(r".*\.self_attn\.q_proj\.weight$"), "0.18.9"),
            Near(partitioned(r".*\.q_proj\.weight$"), "0.18.8"),
            Near(partitioned(r"(.*\.)?self_attn\.q_proj\.weight$"), "0.18.8"),
            Near(partitioned(r".*\.self_attn\.q_proj\.weight$", size=1), "0.18.8"),
        ],
        release="0.18.6",
    ),
    Case(
        "checkpoint_writer_keeps_files",
        {"checkpoint": {"writer": {"decoupled": True}}},
        "checkpoint.writer",
        [
            Near({"checkpoint": {"writer": {"type": "Fast"}}}, "0.19.1"),
            Near({"checkpoint": {"writer": {"type": "python"}}}, "0.19.0"),
            Near({"checkpoint": {"tag_validation": "Ignore"}}, "0.19.0"),
        ],
        release="0.19.0",
    ),
    Case(
        "straggler_times",
        {"comms_logger": {"enabled": True}},
        "comms_logger.enabled",
        [Near({"comms_logger": {"enabled": True}}, "0.19.4"), Near({"comms_logger": {"enabled": False}}, "0.19.3")],
        release="0.19.3",
    ),
    Case(
        "elastic_batch_above_maximum",
        elastic([7, 11, 13], 500),
        "elasticity.max_train_batch_size",
        [
            Near(elastic([7, 11, 13], 500), "0.19.6"),
            Near(elastic([7, 11, 13], 1001), "0.19.5"),
            Near(elastic([2, 4, 6], 12), "0.19.5"),
        ],
        release="0.19.5",
    ),
    Case(
        "one_cycle_lists",
        one_cycle(cycle_min_lr=[0.01]),
        "scheduler.params.cycle_min_lr",
        [Near(one_cycle(cycle_min_lr=[0.01]), "0.19.6"), Near(one_cycle(), "0.19.5")],
        release="0.19.5",
    ),
    Case(
        "scheduler_step_size_zero",
        one_cycle(cycle_first_step_size=0),
        "scheduler.params.cycle_first_step_size",
        [Near(one_cycle(cycle_first_step_size=1, cycle_second_step_size=0)), Near(one_cycle())],
    ),
    Case(
        "scheduler_step_size_zero",
        {"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}}},
        "scheduler.params.lr_range_test_step_size",
        [
            Near({"scheduler": {"type": "LRRangeTest", "params": {}}}),
            Near({"scheduler": {"type": "WarmupLR", "params": {"lr_range_test_step_size": 0}}}),
        ],
        release="0.19.3",
    ),
    Case(
        "nvme_pipeline_write",
        zero(3, offload_optimizer={**NVME, "pipeline_write": True}),
        "zero_optimization.offload_optimizer.pipeline_write",
        [
            Near(zero(3, offload_optimizer={**NVME, "pipeline_write": True}), "0.14.5"),
            Near(zero(3, offload_optimizer=NVME), "0.14.4"),
        ],
        release="0.14.4",
    ),
    Case(
        "quantized_weights_in_bf16",
        {**zero(3, zero_quantized_weights=True), "bf16": {"enabled": True}},
        "zero_optimization.zero_quantized_weights",
        [
            Near({**zero(3, zero_quantized_weights=True), "bf16": {"enabled": True}}, "0.19.6"),
            Near({**zero(3, zero_quantized_weights=True), "fp16": {"enabled": True}}, "0.19.5"),
            Near({**zero(3, zero_quantized_weights=True), "bf16": {"enabled": "auto"}}, "0.19.5"),
        ],
        release="0.19.5",
    ),
    Case(
        "quantized_gradients_of_odd_sizes",
        zero(3, zero_quantized_gradients=True),
        "zero_optimization.zero_quantized_gradients",
        [Near(zero(3, zero_quantized_gradients=True), "0.13.2"), Near(zero(3), "0.13.1")],
        release="0.13.1",
    ),
    Case(
        "immediate_grad_update",
        {"bf16": {"enabled": True, "immediate_grad_update": True}},
        "bf16.immediate_grad_update",
        [
            Near({"bf16": {"enabled": True, "immediate_grad_update": True}}, "0.14.2"),
            Near({"bf16": {"enabled": True, "immediate_grad_update": True}, **zero(2)}, "0.14.1"),
        ],
        release="0.14.1",
    ),
    Case(
        "separate_buckets_all_reduced",
        zero(2, use_multi_rank_bucket_allreduce=False),
        "zero_optimization.use_multi_rank_bucket_allreduce",
        [
            Near(zero(2, use_multi_rank_bucket_allreduce=False), "0.13.0"),
            Near(zero(2, use_multi_rank_bucket_allreduce=True), "0.12.6"),
        ],
        release="0.12.6",
    ),
    Case(
        "empty_reductions",
        zero(2, reduce_scatter=False, reduce_bucket_size=5e6),
        "zero_optimization.reduce_bucket_size",
        [
            Near(zero(2, reduce_scatter=False, reduce_bucket_size=5e6), "0.14.5"),
            Near(zero(2, reduce_bucket_size=5e6), "0.14.4"),
        ],
        release="0.14.4",
    ),
    Case(
        "muon_in_zero3",
        {**MUON, **zero(3), "gradient_accumulation_steps": 4},
        "gradient_accumulation_steps",
        [
            Near({**MUON, **zero(3), "gradient_accumulation_steps": 4}, "0.19.8"),
            Near({**MUON, **zero(3)}, "0.19.7"),
            Near({**MUON, **zero(2), "gradient_accumulation_steps": 4}, "0.19.7"),
            Near({**ADAM, **zero(3), "gradient_accumulation_steps": 4}, "0.19.7"),
        ],
        release="0.19.7",
    ),
    Case(
        "muon_in_zero3",
        {**MUON, **zero(3)},
        "optimizer.type",
        [Near({**MUON, **zero(3)}, "0.19.7"), Near({**MUON, **zero(3)}, "0.18.8"), Near({**MUON, **zero(2)}, "0.19.6")],
        release="0.19.6",
    ),
    Case(
        "hpz_quantized_frozen_weights",
        zero(3, zero_hpz_partition_size=8, zero_quantized_nontrainable_weights=True),
        "zero_optimization.zero_quantized_nontrainable_weights",
        [
            Near(zero(3, zero_hpz_partition_size=1, zero_quantized_nontrainable_weights=True)),
            Near(zero(3, zero_hpz_partition_size=8)),
            Near(zero(2, zero_hpz_partition_size=8, zero_quantized_nontrainable_weights=True)),
        ],
    ),
    Case(
        "memory_efficient_linear_ignored",
        zero(3, memory_efficient_linear=True),
        "zero_optimization.memory_efficient_linear",
        [
            Near(zero(3, memory_efficient_linear=True), "0.19.4"),
            Near(zero(3), "0.19.3"),
            Near(zero(2, memory_efficient_linear=True), "0.19.3"),
        ],
        release="0.19.3",
    ),
    Case(
        "joined_modules_released_singly",
        zero(3, stage3_module_granularity_threshold=4096),
        "zero_optimization.stage3_module_granularity_threshold",
        [
            Near(zero(3, stage3_module_granularity_threshold=4096), "0.16.2"),
            Near(zero(3, stage3_module_granularity_threshold=4096), "0.19.7"),
            Near(zero(3, stage3_module_granularity_threshold=0), "0.19.6"),
        ],
        release="0.19.6",
    ),
    Case(
        "single_rank_group",
        zero(3),
        "zero_optimization.stage",
        [
            Near(zero(3), "0.19.4", {"world_size": 1, **model(launched=4)}),
            Near(zero(3), "0.19.3", {"world_size": 4, **model(launched=4)}),
            Near(zero(3), "0.19.3", {"world_size": 1, **model(launched=1)}),
            Near(zero(3), "0.19.3", model(launched=4)),
            Near(zero(2), "0.19.3", {"world_size": 1, **model(launched=4)}),
        ],
        release="0.19.3",
        around={"world_size": 1, **model(launched=4)},
    ),
    Case(
        "fp16_norm_of_one_rank",
        FP16_CLIPPED,
        "gradient_clipping",
        [
            Near(FP16_CLIPPED, "0.14.2", model(tensor_parallel=2)),
            Near(FP16_CLIPPED, "0.14.1", model(tensor_parallel=1)),
            Near(FP16_CLIPPED, "0.14.1"),
            Near({**FP16_CLIPPED, **zero(1)}, "0.14.1", model(tensor_parallel=2)),
            Near({"fp16": {"enabled": True}}, "0.14.1", model(tensor_parallel=2)),
        ],
        release="0.14.1",
        around=model(tensor_parallel=2),
    ),
    Case(
        "float8_cast",
        {"bf16": {"enabled": True}},
        "bf16.enabled",
        [
            Near({"bf16": {"enabled": True}}, "0.19.8", model(float8=True)),
            Near({"bf16": {"enabled": True}}, "0.19.7", model(float8=False)),
            Near({}, "0.19.7", model(float8=True)),
        ],
        release="0.19.7",
        around=model(float8=True),
    ),
    Case(
        "fp32_buffers_cast",
        {"bf16": {"enabled": True}, **zero(3)},
        "bf16.enabled",
        [
            Near({"bf16": {"enabled": True}, **zero(3)}, "0.19.8", model(fp32_buffers=True)),
            Near({"bf16": {"enabled": True}, **zero(2)}, "0.19.2", model(fp32_buffers=True)),
            Near({"bf16": {"enabled": True}, **zero(3)}, "0.19.7"),
            Near(zero(3), "0.19.7", model(fp32_buffers=True)),
        ],
        release="0.19.7",
        around=model(fp32_buffers=True),
    ),
    Case(
        "fp32_buffers_cast",
        {"fp16": {"enabled": True}, **zero(1)},
        "fp16.enabled",
        [Near({"fp16": {"enabled": True}, **zero(1)}, "0.19.2", model(fp32_buffers=True))],
        release="0.19.1",
        around=model(fp32_buffers=True),
    ),
    Case(
        "gradients_not_reduced_on_cpu",
        zero(2, contiguous_gradients=False),
        "zero_optimization.contiguous_gradients",
        [
            Near(zero(2, contiguous_gradients=False), "0.19.8"),
            Near(zero(3, contiguous_gradients=False), "0.19.7"),
            Near(zero(2), "0.19.7"),
        ],
        release="0.19.7",
    ),
    Case(
        "curriculum_incomplete_batch",
        CURRICULUM,
        "data_efficiency.data_sampling.curriculum_learning",
        [
            Near(CURRICULUM, "0.13.3"),
            Near({**CURRICULUM, "dataloader_drop_last": True}, "0.13.2"),
            Near(CURRICULUM, "0.13.2", {"world_size": 1}),
        ],
        release="0.13.2",
    ),
    Case(
        "curriculum_short_batches",
        CURRICULUM,
        "data_efficiency.data_sampling.curriculum_learning",
        [Near({"data_efficiency": {**CURRICULUM["data_efficiency"], "enabled": False}})],
    ),
    Case(
        "hybrid_engine_of_bloom",
        {"hybrid_engine": {"enabled": True}},
        "hybrid_engine.enabled",
        [Near({"hybrid_engine": {"enabled": True}}, "0.14.1"), Near({"hybrid_engine": {"enabled": False}}, "0.14.0")],
        release="0.14.0",
    ),
    Case(
        "cosine_warmup_type",
        cosine(warmup_type="cosine"),
        "scheduler.params.warmup_type",
        [
            Near(cosine(warmup_type="cosine"), "0.19.4"),
            Near(cosine(warmup_type="linear"), "0.19.3"),
            Near(cosine(), "0.19.3"),
            Near(cosine(warmup_type="cosine"), "0.19.3", model(scheduler="StepLR")),
        ],
        release="0.19.3",
    ),
    Case(
        "cosine_warmup_steps",
        cosine(warmup_num_steps=1),
        "scheduler.params.warmup_num_steps",
        [Near(cosine(warmup_num_steps=1), "0.12.4"), Near(cosine(warmup_num_steps=2), "0.12.3")],
        release="0.12.3",
    ),
    Case(
        "loss_scale_window_zero",
        {"fp16": {"enabled": True, "loss_scale_window": 0}},
        "fp16.loss_scale_window",
        [
            Near({"fp16": {"enabled": True, "loss_scale_window": 100}}),
            Near({"fp16": {"enabled": True, "loss_scale_window": 0, "loss_scale": 1024}}),
            Near({"fp16": {"enabled": False, "loss_scale_window": 0}}),
        ],
    ),
    Case(
        "breakdown_not_printed",
        {"wall_clock_breakdown": True},
        "wall_clock_breakdown",
        [Near({"wall_clock_breakdown": True}, "0.18.0"), Near({"wall_clock_breakdown": False}, "0.17.6")],
        release="0.17.6",
    ),
    Case(
        "breakdown_not_printed",
        {"memory_breakdown": True},
        "memory_breakdown",
        [Near({"memory_breakdown": True}, "0.18.3")],
        release="0.18.2",
    ),
    Case(
        "flops_not_counted",
        {"flops_profiler": {"enabled": True}},
        "flops_profiler.enabled",
        [Near({"flops_profiler": {"enabled": True}}, "0.13.3"), Near({"flops_profiler": {"enabled": False}}, "0.13.2")],
        release="0.13.2",
    ),
    Case(
        "shards_not_kept_on_host",
        Whole({**INFERENCE, "keep_module_on_host": True}),
        "keep_module_on_host",
        [
            Near(Whole({**INFERENCE, "keep_module_on_host": True}), "0.16.5"),
            Near(Whole({**INFERENCE, "keep_module_on_host": False}), "0.16.4"),
        ],
        release="0.16.4",
    ),
    Case(
        "autotp_of_meta_model",
        Whole({"tensor_parallel": {"tp_size": 2}, "checkpoint": "a.json"}),
        "checkpoint",
        [
            Near(Whole({"tensor_parallel": {"tp_size": 2}, "checkpoint": "a.json"}), "0.16.5"),
            Near(Whole({**INFERENCE, "checkpoint": "a.json"}), "0.16.4"),
            Near(Whole({"tensor_parallel": {"tp_size": 1}, "checkpoint": "a.json"}), "0.16.4"),
        ],
        release="0.16.4",
    ),
    Case(
        "experts_taken_for_ranks",
        Whole({**INFERENCE, "moe": {"moe_experts": [8]}}),
        "moe.moe_experts",
        [
            Near(Whole({**INFERENCE, "moe": {"moe_experts": [8]}}), "0.17.6"),
            Near(Whole({**INFERENCE, "moe": {"ep_size": 2}}), "0.17.5"),
            Near(Whole({**INFERENCE, "moe": {"moe_experts": [8]}}), "0.17.5", {"world_size": 1}),
        ],
        release="0.17.5",
    ),
    # templates
    Case(
        "template",
        TEMPLATE,
        "",
        [
            Near({"train_batch_size": 8, "zero_optimization": {"stage": 2}}),
            Near({"_comment": "<your config>", "my_own_note": "TODO"}),
            Near({"optimizer": {"type": "ADAM", "params": {"lr": 1e-4}}, "communication_data_type": "FP32"}),
            Near({"wandb": {"enabled": True, "project": "<your project>"}}),
            Near({"wandb": {"enabled": True, "group": "ZERO_STAGE"}, "zero_optimization": {"stage": "auto"}}),
        ],
    ),
    Case("template", {"optimizer": {"type": "Adam", "params": {"betas": ["%(beta1)s", 0.999]}}}, "", []),
    Case("template", {"train_batch_size": "YOUR_BATCH_SIZE"}, "", [], around=PLAIN),
    Case("template", Whole({"dtype": "fp16", "tensor_parallel": {"tp_size": "<gpus>"}}), "", []),
    Case(
        "placeholder_in_text",
        {"wandb": {"enabled": True, "project": "<your project>"}},
        "",
        [
            Near({"wandb": {"enabled": True, "project": "project"}}),
            Near({"tensorboard": {"enabled": True, "job_name": "RUN_7"}}),
            Near(TEMPLATE),
        ],
    ),
    Case(
        "bugs_with_auto",
        {"fp16": {"enabled": "auto"}},
        "",
        [
            Near({"fp16": {"enabled": "auto"}}, around=model(fp16="true")),
            Near({"fp16": {"enabled": "auto"}}, around=model(fp16="false")),
            Near({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}, "0.19.8"),
            Near({"fp16": {"enabled": True}}),
            Near({"fp16": {"enabled": "${FP16}"}}),
        ],
    ),
    # ZeRO and offloading
    Case(
        "needs_stage_3",
        zero(2, offload_param=OFFLOAD),
        "zero_optimization.offload_param",
        [
            Near(zero(3, offload_param=OFFLOAD)),
            Near(zero(2, offload_param={"device": "none"})),
            Near(zero("auto", offload_param=OFFLOAD)),
        ],
    ),
    Case(
        "needs_stage_3",
        zero(2, zero_hpz_partition_size=8),
        "zero_optimization.zero_hpz_partition_size",
        [Near(zero(2, zero_hpz_partition_size=1))],
    ),
    Case("needs_stage_3", zero(1, zero_quantized_gradients=True), "zero_optimization.zero_quantized_gradients", []),
    Case(
        "hpz_backward_on_old_weights",
        zero(3, zero_hpz_partition_size=2),
        "zero_optimization.zero_hpz_partition_size",
        [
            Near(zero(3, zero_hpz_partition_size=1), release="0.13.1"),
            Near(zero(3, zero_hpz_partition_size=2), "0.13.2"),
        ],
        release="0.13.1",
    ),
    Case(
        "offload_without_zero",
        zero(0, offload_optimizer=OFFLOAD),
        "zero_optimization.offload_optimizer",
        [Near(zero(1, offload_optimizer=OFFLOAD))],
    ),
    Case(
        "no_nvme_path",
        zero(3, offload_param={"device": "nvme"}),
        "zero_optimization.offload_param.nvme_path",
        [
            Near(zero(3, offload_param={"device": "nvme", "nvme_path": "/nvme"})),
            Near(zero(3, offload_param={"device": "cpu"})),
        ],
    ),
    Case(
        "offload_client_optimizer",
        zero(2, offload_optimizer=OFFLOAD),
        "zero_force_ds_cpu_optimizer",
        [
            Near(zero(2, offload_optimizer=OFFLOAD), around={**PLAIN, **model(optimizer="DeepSpeedCPUAdam")}),
            Near(
                {**zero(2, offload_optimizer=OFFLOAD), "zero_force_ds_cpu_optimizer": False},
                around={**PLAIN, **model(optimizer="AdamW")},
            ),
            Near(zero(2, offload_optimizer=OFFLOAD), around=model(optimizer="AdamW")),  # accelerate replaces it
        ],
        around={**PLAIN, **model(optimizer="AdamW")},
    ),
    Case(
        "offload_client_optimizer",
        zero(2, offload_optimizer=OFFLOAD),
        "zero_force_ds_cpu_optimizer",
        [Near(zero(2, offload_optimizer=OFFLOAD), "0.17.6", {**PLAIN, **model(optimizer="DeepSpeedCPULion")})],
        release="0.17.5",
        around={**PLAIN, **model(optimizer="DeepSpeedCPULion")},
    ),
    Case(
        "offload_at_odds",
        {**zero(3, offload_param=OFFLOAD), **ADAM},
        "zero_optimization.offload_optimizer",
        [
            Near(zero(3, offload_param=OFFLOAD, offload_optimizer=OFFLOAD)),
            Near(zero(3, offload_optimizer=OFFLOAD)),
            Near(zero(3, offload_param=OFFLOAD)),  # ZeRO-Inference, perhaps
            Near({**zero(3, offload_param=OFFLOAD), **ADAM}, around=model(lora="peft")),
        ],
    ),
    Case(
        "offload_memory",
        zero(3, offload_optimizer=OFFLOAD),
        "zero_optimization.offload_optimizer",
        [
            Near(zero(3, offload_optimizer=OFFLOAD), around=model(parameters="1M")),
            Near(zero(3), around=model(parameters="90000B")),
            Near(zero(3, offload_optimizer=OFFLOAD), around=model(parameters="90000B", lora="peft")),
        ],
        around=model(parameters="90000B"),
    ),
    Case(
        "weights_not_gathered",
        zero(3),
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        [
            Near(zero(3, stage3_gather_16bit_weights_on_model_save=True), around=model(save_16bit="true")),
            Near(zero(2), around=model(save_16bit="true")),
            Near(zero(3)),
        ],
        around=model(save_16bit="true"),
    ),
    # optimizers and schedulers
    Case(
        "max_grad_norm_in_optimizer",
        {**MAX_NORM, "gradient_clipping": "auto"},
        "optimizer.params.max_grad_norm",
        [Near({**ADAM, "gradient_clipping": "auto"}), Near(MAX_NORM)],
    ),
    Case(
        "unused_max_grad_norm",
        MAX_NORM,
        "optimizer.params.max_grad_norm",
        [Near({**MAX_NORM, "gradient_clipping": "auto"}), Near(ADAM)],
    ),
    Case(
        "unknown_optimizer",
        {"optimizer": {"type": "AdamW8bit", "params": {}}},
        "optimizer.type",
        [
            Near({"optimizer": {"type": "ADAMW"}}),
            Near({"optimizer": {"type": "RMSprop"}}),
            Near({"optimizer": {"type": "OneBitAdam"}}, "0.19.6"),
        ],
    ),
    Case("unknown_optimizer", {"optimizer": {"type": "OneBitAdam"}}, "optimizer.type", [], "0.19.7"),
    Case(
        "untested_optimizer",
        UNTESTED,
        "optimizer.type",
        [
            Near({**UNTESTED, "zero_allow_untested_optimizer": True}),
            Near({**SGD, **zero(0)}),
            Near({**ADAM, **zero(2)}),
            Near(UNTESTED, around=model(optimizer="AdamW")),
        ],
    ),
    Case(
        "untested_optimizer", zero(2), "zero_allow_untested_optimizer", [], around={**PLAIN, **model(optimizer="SGD")}
    ),
    Case(
        "untested_optimizer",
        {"optimizer": {"type": "Muon"}, **zero(2)},
        "optimizer.type",
        [Near({"optimizer": {"type": "Muon"}, **zero(2)}, "0.18.5")],
        release="0.18.4",
    ),
    Case(
        "one_bit_with_zero",
        {"optimizer": {"type": "OneBitAdam"}, **zero(1)},
        "optimizer.type",
        [Near({"optimizer": {"type": "OneBitAdam"}}, "0.16.9"), Near({**ADAM, **zero(1)}, "0.16.9")],
        release="0.16.9",
    ),
    Case(
        "unknown_scheduler",
        {"scheduler": {"type": "WarmupDecay", "params": {}}},
        "scheduler.type",
        [
            Near({"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 3}}}),
            Near({"scheduler": {"type": "WarmupLR", "params": {}}}),
        ],
    ),
    Case("unknown_scheduler", {"scheduler": {"type": "WarmupCosineLR", "params": {}}}, "scheduler.type", [], "0.12.2"),
    Case(
        "incomplete_scheduler",
        {"scheduler": {"type": "WarmupDecayLR", "params": {}}},
        "scheduler.params.total_num_steps",
        [
            Near({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}}),
            Near({"scheduler": {"type": "WarmupLR", "params": {}}}),
        ],
    ),
    Case("incomplete_scheduler", {"scheduler": {"type": "WarmupLR"}}, "scheduler.params", []),
    Case(
        "passed_scheduler_unused",
        {"scheduler": {"type": "WarmupLR", "params": {}}},
        "scheduler",
        [
            Near({"scheduler": {"type": "WarmupLR", "params": {}}}, "0.14.5", model(scheduler="LambdaLR")),
            Near({"scheduler": {"type": "WarmupLR", "params": {}}}, "0.14.4"),
            Near({}, "0.14.4", model(scheduler="LambdaLR")),
        ],
        release="0.14.4",
        around=model(scheduler="LambdaLR"),
    ),
    Case(
        "warmup_to_default_rate",
        {**ADAM, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}},
        "scheduler.params.warmup_max_lr",
        [
            Near({**ADAM, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}, "0.17.2"),
            Near({**ADAM, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4}}}, "0.17.1"),
            Near({"scheduler": {"type": "WarmupLR", "params": {}}}, "0.17.1"),
            Near({**ADAM, "scheduler": {"type": "WarmupLR", "params": {}}}, "0.17.1", model(optimizer="AdamW")),
            Near(
                {
                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                    "scheduler": {"type": "WarmupLR", "params": {}},
                },
                "0.17.1",
            ),
        ],
        release="0.17.1",
    ),
    Case(
        "warmup_to_default_rate",
        {**ADAM, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100}}},
        "scheduler.params.warmup_max_lr",
        [],
    ),
    Case(
        "warmup_steps_not_positive",
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
        "scheduler.params.warmup_num_steps",
        [
            Near({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}}, "0.19.2"),
            Near({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}}, "0.19.3"),
        ],
        release="0.19.3",
    ),
    # defaults
    Case(
        "gradient_clipping_default",
        {},
        "gradient_clipping",
        [Near({"gradient_clipping": 0.0}), Near({"gradient_clipping": "auto"}), Near(zero(3, offload_param=OFFLOAD))],
    ),
    Case(
        "bf16_unchecked_gradients",
        {"bf16": {"enabled": True}, **zero(2)},
        "bf16.enabled",
        [
            Near({"bf16": {"enabled": True}, **zero(2)}, "0.17.1", PLAIN),
            Near({"bf16": {"enabled": True}, **zero(0)}, "0.17.0", PLAIN),
            Near({"fp16": {"enabled": True}, **zero(2)}, "0.17.0", PLAIN),
            Near({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, **zero(1)}, "0.17.0", PLAIN),
        ],
        release="0.17.0",
        around=PLAIN,
    ),
    Case(
        "bf16_checkpointed_twice",
        {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, **zero(1)},
        "bf16.enabled",
        [
            Near({"bf16": {"enabled": True}, **zero(0)}, "0.17.1", PLAIN),
            Near({"bf16": {"enabled": True}, **zero(0)}, "0.16.4", PLAIN),
            Near({"bf16": {"enabled": True}, **zero(1)}, "0.17.0", PLAIN),
            Near({"fp16": {"enabled": True}, **zero(0)}, "0.17.0", PLAIN),
        ],
        release="0.17.0",
        around=PLAIN,
    ),
    Case(
        "bf16_overflow_default",
        {"bf16": {"enabled": True}},
        "bf16.check_grad_overflow",
        [
            Near({"bf16": {"enabled": True, "check_grad_overflow": False}}, around=PLAIN),
            Near({"bf16": {"enabled": True}}, "0.17.0", PLAIN),
        ],
        around=PLAIN,
    ),
    Case(
        "timeout_default",
        {},
        "DEEPSPEED_TIMEOUT",
        [Near({}), Near({}, around={"world_size": 1}), Near({}, "0.19.5", {"world_size": 2})],
        release="0.19.6",
        around={"world_size": 2},
    ),
    # the training around the config
    Case(
        "zero3_device_map",
        zero(3),
        "zero_optimization.stage",
        [Near(zero(2), around=model(device_map="auto")), Near(zero(3))],
        around=model(device_map="auto"),
    ),
    Case(
        "zero3_low_cpu_mem_usage",
        zero(3),
        "zero_optimization.stage",
        [Near(zero(3), around=model(low_cpu_mem_usage="false")), Near(zero(2), around=model(low_cpu_mem_usage="true"))],
        around=model(low_cpu_mem_usage="true"),
    ),
    Case("frozen_base_saved", {}, "checkpoint", [Near({}, around=model(lora="peft"))], around=model(lora="own")),
    Case(
        "moe_without_leaf_modules",
        zero(3),
        "zero_optimization.stage",
        [
            Near(zero(3, leaf_module={"classes": ["MixtralSparseMoeBlock"]}), around=model(moe="true")),
            Near(zero(2), around=model(moe="true")),
        ],
        around=model(moe="true"),
    ),
    Case(
        "lora_fits_stage_2",
        zero(3),
        "zero_optimization.stage",
        [
            Near(zero(3), around=model(lora="peft", parameters="70B", gpu_memory="80")),
            Near(zero(3), around=model(parameters="7B", gpu_memory="80")),
        ],
        around=model(lora="peft", parameters="7B", gpu_memory="80"),
    ),
    Case(
        "zero3_checkpointing_recompute",
        zero(3),
        "zero_optimization.stage",
        [
            Near(zero(3), "0.19.3", model(lora="peft", gradient_checkpointing="true")),
            Near(zero(2), "0.19.2", model(lora="peft", gradient_checkpointing="true")),
            Near(zero(3), "0.19.2", model(lora="peft", gradient_checkpointing="true", use_reentrant="true")),
            Near(zero(3), "0.19.2", model(gradient_checkpointing="true")),
        ],
        release="0.19.2",
        around=model(lora="peft", gradient_checkpointing="true"),
    ),
    Case(
        "mismatch_with_arguments",
        BATCH,
        "train_micro_batch_size_per_gpu",
        [
            Near(BATCH, around=model(per_device_train_batch_size="2")),
            Near({"train_micro_batch_size_per_gpu": "auto"}, around=model(per_device_train_batch_size="4")),
            Near(BATCH, around={**PLAIN, **model(per_device_train_batch_size="4")}),
        ],
        around=model(per_device_train_batch_size="4"),
    ),
    Case("mismatch_with_arguments", {"bf16": {"enabled": True}}, "bf16.enabled", [], around=model(bf16="false")),
    Case(
        "mismatch_with_arguments",
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}},
        "optimizer.params.betas",
        [
            Near(
                {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}},
                around=model(adam_beta2="0.95"),
            )
        ],
        around=model(adam_beta2="0.999"),
    ),
    Case(
        "mismatch_with_arguments",
        {"train_batch_size": 32},
        "train_batch_size",
        [
            Near(
                {"train_batch_size": 32},
                around={"world_size": 8, **model(per_device_train_batch_size="2", gradient_accumulation_steps="2")},
            )
        ],
        around={"world_size": 8, **model(per_device_train_batch_size="2")},
    ),
]
ELSEWHERE = {  # rule -> its test in this directory
    "duplicate_key": "test_check_files",
    "not_plain_json": "test_check_files",
    "accelerate_ignores": "test_check_files",
    "accelerate_not_deepspeed": "test_check_files",
    "accelerate_without_zero": "test_check_files",
    "pinned_memory_limited": "test_pinned_memory_on_wsl2",
}


@pytest.fixture(autouse=True)
def torch_is_installed(monkeypatch):
    """Version gates see torch, whether or not it is installed."""
    installed = versions.installed
    monkeypatch.setattr(versions, "installed", lambda name: "2.13.0" if name == "torch" else installed(name))


def found(config, release, around):
    if "train_micro_batch_size_per_gpu" not in config and not isinstance(config, Whole):
        config = {**BATCH, **config}
    return checking.check(config, deepspeed=release, **around).findings


def label(case):
    return f"{case.rule}-{case.where}-{case.release}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_problem_is_found(case):
    findings = [each for each in found(case.config, case.release, case.around) if each.rule == case.rule]
    assert [each.where for each in findings] == [case.where]
    assert findings[0].remedy


@pytest.mark.parametrize("case", [case for case in CASES if case.near], ids=label)
def test_a_near_miss_is_not_found(case):
    for near in case.near:
        rules_found = [each.rule for each in found(near.config, near.release, near.around)]
        assert case.rule not in rules_found, near


def test_every_rule_has_a_case():
    known = {rule.id for rule in rules.load("dsfix.check.rules") if not rule.id.startswith("bug_")}
    assert known == {case.rule for case in CASES} | ELSEWHERE.keys()


def test_ids_are_unique_and_evidence_is_given():
    every = rules.load("dsfix.check.rules")
    assert len({rule.id for rule in every}) == len(every)
    assert all(rule.evidence and rule.remedy for rule in every)


def test_no_rule_fails_on_a_strange_config():
    strange = [None, 1, "x", [1], {"a": {"b": 1}}, True, 1e400]
    names = [
        "train_batch_size",
        "zero_optimization",
        "fp16",
        "optimizer",
        "scheduler",
        "elasticity",
        "bf16",
        "checkpoint",
    ]
    configs = [{name: value} for name in names for value in strange]
    configs += [
        {"zero_optimization": {name: value}}
        for name in ("stage", "offload_param", "reduce_bucket_size")
        for value in strange
    ]
    configs += [
        {"optimizer": {"type": value, "params": value}, "scheduler": {"type": value, "params": value}}
        for value in strange
    ]
    for config in configs:
        for release in ("0.12.0", "0.14.5", NEWEST):
            for plain in (False, True):
                findings = checking.check(config, deepspeed=release, plain=plain, world_size=2).findings
                assert not [each for each in findings if "could not be evaluated" in each.what], config


def test_a_placeholder_has_no_other_finding():
    values = {
        "steps_per_print": "LOG_EVERY_STEPS",
        "prescale_gradients": "<true or false>",
        "gradient_clipping": "TODO",
    }
    config = {
        **TEMPLATE,
        **values,
        "bf16": {"enabled": "$BF16"},
        "optimizer": {"type": "<name>", "params": {"lr": "{lr}"}},
        "zero_optimization": {"stage": "ZERO_STAGE", "offload_param": {"device": "${DEVICE}"}, "overlap_comm": "TODO"},
    }
    for release in ("0.12.0", "0.16.9", NEWEST):
        for plain in (False, True):
            findings = found(config, release, {"plain": plain, "world_size": 4})
            assert [each.rule for each in findings if each.level is not rules.Level.NOTE] == ["template"]
            assert all(f"{name} (" in findings[0].what for name in (*values, "fp16.enabled", "optimizer.params.lr"))
        more = {"data_efficiency": {"data_routing": {"random_ltd": {"total_layer_num": "<layers>"}}}}
        assert "random_ltd.total_layer_num (<layers>)" in found({**config, **more}, release, {})[0].what  # may be read
    other = found({**config, "zero_optimization": {"stage": 4}}, NEWEST, {})
    assert {each.rule for each in other if each.level is rules.Level.ERROR} == {"template", "unknown_stage"}


def test_only_what_is_known_of_an_inference_config_is_reported():
    for release in ("0.12.0", NEWEST):
        config = Whole({**INFERENCE, "replace_method": "auto", "mp_size": 2, "max_out_tokens": 2048})
        assert [each.rule for each in found(config, release, {})] == ["inference_config"]


def test_values_that_autotuning_tries_have_no_finding():
    config = {**zero([0, 1, 2, 3]), "autotuning": {"enabled": True}}
    config["zero_optimization"].update(reduce_bucket_size=[5e7, 5e8], overlap_comm=[True, False])
    for release in ("0.12.0", "0.16.9", NEWEST):
        for plain in (False, True):
            assert [each.rule for each in found(config, release, {"plain": plain})] == ["gradient_clipping_default"]


def test_a_timeout_that_is_set(monkeypatch):
    monkeypatch.delenv("DEEPSPEED_TIMEOUT", raising=False)
    assert "timeout_default" in [each.rule for each in found({}, NEWEST, {"world_size": 2})]
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", "30")
    assert "timeout_default" not in [each.rule for each in found({}, NEWEST, {"world_size": 2})]


def test_low_cpu_mem_usage_of_a_new_transformers(monkeypatch):
    around = model(low_cpu_mem_usage="true")
    for version, reported in (("4.57.0", True), ("5.0.0", False)):
        monkeypatch.setattr(versions, "installed", lambda name, version=version: version)
        assert ("zero3_low_cpu_mem_usage" in [each.rule for each in found(zero(3), NEWEST, around)]) is reported


def test_pinned_memory_on_wsl2(monkeypatch):
    config = zero(2, offload_optimizer={"device": "cpu", "pin_memory": True})
    assert "pinned_memory_limited" not in [each.rule for each in found(config, NEWEST, {})]
    monkeypatch.setattr(checking, "_is_wsl", lambda: True)
    assert "pinned_memory_limited" in [each.rule for each in found(config, NEWEST, {})]
    assert "pinned_memory_limited" in [each.rule for each in found(zero(2, offload_optimizer=OFFLOAD), NEWEST, {})]
    assert "pinned_memory_limited" not in [
        each.rule for each in found(zero(2, offload_optimizer=OFFLOAD), "0.19.4", {})
    ]


BUGS = [  # patch, release, config that triggers the bug, config that does not
    (
        "zero3_offload_clip_device",
        "0.14.2",
        {**zero(3, offload_optimizer=OFFLOAD), "gradient_clipping": 1.0},
        zero(3, offload_optimizer=OFFLOAD),
    ),
    ("zero2_accumulation_drops_microbatches", "0.18.0", {**zero(2), "gradient_accumulation_steps": 2}, zero(2)),
    (
        "zero2_offload_accumulation_drops",
        "0.18.0",
        {**zero(2, offload_optimizer=OFFLOAD), "gradient_accumulation_steps": 3},
        zero(2, offload_optimizer=OFFLOAD),
    ),
    ("bf16_gradients_unreduced", "0.13.2", {"bf16": {"enabled": True}}, {"bf16": {"enabled": True}, **zero(1)}),
    ("bf16_stage0_no_update", "0.18.0", {"bf16": {"enabled": True}}, {"bf16": {"enabled": True}, **zero(1)}),
    (
        "fp16_zero1_overflow_deadlock",
        "0.17.6",
        {"fp16": {"enabled": True}, **zero(1)},
        {"fp16": {"enabled": True}, **zero(2)},
    ),
    (
        "zero12_offload_nonfinite_norm_long",
        "0.16.9",
        {"bf16": {"enabled": True}, **zero(2, offload_optimizer=OFFLOAD)},
        {"fp16": {"enabled": True}, **zero(2, offload_optimizer=OFFLOAD)},
    ),
    (
        "zero12_offload_overflow_repeats",
        "0.19.8",
        {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, **zero(1, offload_optimizer=OFFLOAD)},
        {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, **zero(1)},
    ),
    ("hpz_stale_secondary", "0.18.0", zero(3, zero_hpz_partition_size=8), zero(3)),
    (
        "zero3_bf16_nonfinite_step",
        "0.19.2",
        {"bfloat16": {"enabled": True, "check_grad_overflow": "true"}, **zero(3)},
        {"bf16": {"enabled": True}, **zero(3)},  # off by default there
    ),
    (
        "zero3_bf16_nonfinite_step",
        "0.19.3",
        {"bf16": {"enabled": True}, **zero(3)},
        {"bf16": {"enabled": True, "check_grad_overflow": False}, **zero(3)},
    ),
    (
        "fp16_optimizer_never_steps",
        "0.18.0",
        {"fp16": {"enabled": True}, "optimizer": {"type": "Adam", "params": {}}},
        {"fp16": {"enabled": True}, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}},
    ),
    (
        "universal_checkpoint_local_rank",
        "0.17.0",
        {"checkpoint": {"load_universal": True}, **zero(3)},
        {"checkpoint": {"load_universal": True}, **zero(2)},
    ),
]


@pytest.mark.parametrize(
    ("around", "reported"),
    [
        ({"lora": "peft", "weight_decay": "0.1"}, True),
        ({"lora": "peft", "weight_decay": "0"}, False),
        ({"lora": "peft"}, False),
        ({"weight_decay": "0.1"}, False),
    ],
)
def test_frozen_parameters_are_decayed_only_where_some_are_known_and_decay_is(around, reported):
    findings = found({"fp16": {"enabled": True}}, "0.18.9", model(**around))
    assert ("bug_frozen_parameters_decayed" in [each.rule for each in findings]) is reported
    params = {"lr": 1e-4, "weight_decay": float(around.get("weight_decay", 0))}
    named = {"fp16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": params}}
    around = {name: value for name, value in around.items() if name != "weight_decay"}
    findings = found(named, "0.18.9", model(**around))
    assert ("bug_frozen_parameters_decayed" in [each.rule for each in findings]) is reported


DEPENDS = [  # release, config, what is said, given
    ("0.18.0", {**zero(2), "gradient_accumulation_steps": "auto"}, "gradient_accumulation_steps above 1: zero2_acc"),
    (
        "0.18.0",
        {**zero(2, offload_optimizer=OFFLOAD), "gradient_accumulation_steps": "auto"},
        "gradient_accumulation_steps above 2: zero2_offload_accumulation_drops",
    ),
    ("0.14.2", {**zero(3, offload_optimizer=OFFLOAD), **CLIPPING}, "gradient_clipping above 0: zero3_offload_clip"),
    ("0.18.0", {"bf16": {"enabled": "auto"}}, "bf16 on: bf16_stage0_no_update"),
    (
        "0.16.9",
        {"fp16": {"enabled": "auto"}, **zero(2, offload_optimizer=OFFLOAD)},
        "fp16 off: zero12_offload_nonfinite_norm_long",
    ),
    (
        "0.19.8",
        {
            **{"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "data_types": {"grad_accum_dtype": "fp32"}},
            **zero(1, offload_optimizer=OFFLOAD),
        },
        "fp16 or bf16 on: zero12_offload_overflow_repeats",
    ),
]


@pytest.mark.parametrize(("release", "config", "said"), DEPENDS)
def test_bugs_that_depend_on_what_auto_becomes_are_one_note(release, config, said):
    findings = found(config, release, {})
    [note] = [each for each in findings if each.rule == "bugs_with_auto"]
    assert said in note.what
    bug = said.rpartition(": ")[2]
    assert not [each for each in findings if each.rule.startswith(f"bug_{bug}")]


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        (zero(1, elastic_checkpoint=True), True),
        ({**zero(1, elastic_checkpoint=True), **ADAM}, False),  # DeepSpeed's own Adam counts in numbers
        (zero(3, elastic_checkpoint=True), False),
    ],
)
def test_elastic_checkpoints(config, reported):
    findings = found(config, "0.18.0", {})
    assert ("bug_elastic_checkpoint_scalar_step" in [each.rule for each in findings]) is reported


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({**zero(3), "timers": {"throughput": {"enabled": False}}}, True),
        ({**zero(3), "timers": {"throughput": {"synchronized": False}}}, True),
        ({**zero(3), "timers": {"throughput": {"enabled": True}}}, False),
        ({**zero(3, overlap_comm=False), "timers": {"throughput": {"enabled": False}}}, False),
        ({**zero(3, offload_optimizer=OFFLOAD), "timers": {"throughput": {"enabled": False}}}, False),
        ({**zero(2), "timers": {"throughput": {"enabled": False}}}, False),
    ],
)
def test_steps_that_the_throughput_timer_does_not_wait_for(config, reported):
    findings = found(config, NEWEST, {})
    assert ("bug_zero3_weights_gathered_before_step" in [each.rule for each in findings]) is reported


@pytest.mark.parametrize(("patch", "release", "shows", "near"), BUGS, ids=[f"{each[0]}-{each[1]}" for each in BUGS])
def test_a_known_bug_that_the_config_triggers(patch, release, shows, near):
    assert patch in [name for each in found(shows, release, {}) for name in each.patches]
    assert patch not in [name for each in found(near, release, {}) for name in each.patches]
    affected = SpecifierSet(registry.catalogue()[patch].patch.affects["deepspeed"])
    other = next(each for each in ("0.12.0", NEWEST) if each not in affected)
    assert patch not in [name for each in found(shows, other, {}) for name in each.patches]


def test_rules_name_patches_of_the_catalogue():
    named = {name for rule in rules.load("dsfix.check.rules") for name in rule.patches}
    assert named <= registry.catalogue().keys()
