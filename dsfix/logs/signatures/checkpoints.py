"""Saved checkpoints: loading, converting, another number of ranks."""

from __future__ import annotations

from ..signature import Signature

SIGNATURES = (
    Signature(
        id="weights_only_load",
        title="torch 2.6 loads weights only, and the file holds more",
        what="torch.load refuses objects that are no tensors since torch 2.6. DeepSpeed's own checkpoints have some, "
        "and so have files of the random state that transformers saves.",
        remedy="DeepSpeed 0.16.0 or newer for its checkpoints. For files that you trust: "
        "torch.load(…, weights_only=False), or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.",
        pattern=r"Unsupported global: GLOBAL deepspeed\.|Weights only load failed",
        patches=("checkpoint_weights_only",),
        affects={"torch": ">=2.6"},
    ),
    Signature(
        id="another_world_size",
        title="the checkpoint was saved by another number of ranks",
        what="The optimizer's state is partitioned over the data-parallel ranks, and is loaded by as many.",
        remedy="Convert it: python -m deepspeed.checkpoint.ds_to_universal --input_folder … --output_folder …, and "
        '"checkpoint": {"load_universal": true}. Or load with load_optimizer_states=False.',
        pattern=r"used a DP world size of \d+ but the current world size is",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="checkpoint_writer_roles",
        title="a checkpoint writer without data_parallel asks for ranks that only ZeRO-3 or a model-parallel unit has",
        what="checkpoint.writer in the config leaves open how data-parallel ranks share the writing; below ZeRO-3, "
        "without a model-parallel unit and without MoE, nothing tells the writer which rank this is.",
        remedy='"data_parallel": "replica" in checkpoint.writer.',
        pattern=r"'UniversalParallelInfo' object has no attribute 'dp_rank'",
        affects={"deepspeed": ">=0.17.1"},
    ),
    Signature(
        id="mixed_checkpoint_directory",
        title="zero_to_fp32 finds another number of files than the checkpoint says",
        what="The directory holds the files of two checkpoints with different numbers of ranks, or not all ranks have "
        "saved (nodes without a common file system).",
        remedy="Use the directory of one step alone (global_step…), complete, from all nodes.",
        pattern=r"_optim_states\.pt' under .* but found \d+ files",
        affects={"deepspeed": ">=0.12.0"},
    ),
)
