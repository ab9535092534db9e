"""Configs as found in public repositories get no error or warning, on any release that reads them."""

import copy

import pytest

from dsfix.check import checking
from dsfix.rules import Level

AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
FP16 = {
    "enabled": "auto",
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
WARMUP = {
    "type": "WarmupDecayLR",
    "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"),
}
CPU = {"device": "cpu", "pin_memory": True}
NOWHERE = {"device": "none", "pin_memory": True}
STAGE_2 = {
    "stage": 2,
    "allgather_partitions": True,
    "allgather_bucket_size": 2e8,
    "overlap_comm": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 2e8,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}
STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
COMMON = {**AUTO, "gradient_clipping": "auto", "fp16": FP16, "bf16": {"enabled": "auto"}}
OTHERS = {"steps_per_print": 2000, "wall_clock_breakdown": False, "zero_allow_untested_optimizer": True}

SHAPES = {
    "trainer, stage 2 with offload": {
        **COMMON,
        **OTHERS,
        "optimizer": ADAMW,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}},
        "zero_optimization": {**STAGE_2, "offload_optimizer": CPU},
    },
    "trainer, stage 3 with offload": {
        **COMMON,
        "optimizer": ADAMW,
        "scheduler": WARMUP,
        "zero_optimization": {**STAGE_3, "offload_optimizer": CPU, "offload_param": CPU},
    },
    "fine-tuning repository, stage 2": {
        **COMMON,
        "zero_optimization": {**STAGE_2, "offload_optimizer": NOWHERE},
        "steps_per_print": 100,
        "wall_clock_breakdown": False,
    },
    "stage 3 with devices none": {
        **COMMON,
        "zero_optimization": {**STAGE_3, "offload_optimizer": NOWHERE, "offload_param": NOWHERE},
    },
    "names without stage3_": {
        **COMMON,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": "auto",
            "max_live_parameters": 0,
            "max_reuse_distance": 0,
            "gather_16bit_weights_on_model_save": True,
        },
    },
    "parameters offloaded only": {**COMMON, "zero_optimization": {**STAGE_3, "offload_param": CPU}},
    "zero_force_ds_cpu_optimizer": {
        **COMMON,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {**STAGE_3, "offload_optimizer": CPU, "offload_param": CPU},
    },
    "stage 0": {**COMMON, "zero_optimization": {**STAGE_2, "stage": 0}},
    "a comment as a key": {**COMMON, "_comment": "see the wiki", "zero_optimization": STAGE_2},
    "own loop, numbers": {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": 8,
        "steps_per_print": 1,
        "prescale_gradients": False,
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": True,
        "zero_optimization": {"stage": 1, "elastic_checkpoint": True},
        "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    "own loop, optimizer and scheduler": {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {
            "type": "Adam",
            "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "torch_adam": True, "adam_w_mode": True},
        },
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1e-3}},
        "zero_optimization": True,
    },
    "flops profiler, tensorboard, checkpointing": {
        **COMMON,
        "zero_optimization": STAGE_2,
        "flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True},
        "tensorboard": {"enabled": False, "output_path": "runs", "job_name": "train"},
        "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True},
        "comms_logger": {"enabled": True, "verbose": False, "prof_all": True},
        "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True},
    },
    "ZeRO-Inference": {
        "train_batch_size": 1,
        "zero_optimization": {
            **STAGE_3,
            "stage3_max_live_parameters": "auto",
            "offload_param": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 3, "buffer_size": "auto"},
        },
    },
    "deepspeed.init_inference": {
        "dtype": "torch.float16",
        "replace_with_kernel_inject": True,
        "tensor_parallel": {"tp_size": 4},
        "max_out_tokens": 512,
    },
    "no batch size, for Lightning": {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": STAGE_2,
        "fp16": {"enabled": True, "loss_scale": 0},
    },
    "pipeline and checkpoints": {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 1,
        "pipeline": {"stages": 4, "activation_checkpoint_interval": 1, "use_reentrant": False},
        "checkpoint": {"tag_validation": "Warn", "load_universal": False, "parallel_write": {"pipeline_stage": False}},
    },
    "autotuning over stages": {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": [0, 1, 2], "reduce_bucket_size": [5e7, 5e8]},
        "autotuning": {"enabled": True, "arg_mappings": {"train_micro_batch_size_per_gpu": "--batch"}},
    },
    "another program's keys": {**COMMON, "zero_optimization": STAGE_2, "model-parallel-size": 1, "num-layers": 12},
}


@pytest.mark.parametrize("release", ["0.12.0", "0.14.2", "0.16.9", "0.17.1", "0.18.9", "0.19.8"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_false_positive(shape, release):
    before = copy.deepcopy(shape)
    findings = checking.check(shape, deepspeed=release).findings
    assert [finding for finding in findings if finding.level is not Level.NOTE] == []
    assert shape == before
