"""Saved checkpoints: loading, converting, another number of ranks."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="weights_only_load",
        title="torch 2.6 loads weights only, and the file holds more",
        what="torch.load refuses objects that are no tensors since torch 2.6. DeepSpeed's own checkpoints have some, "
        "and so have files of the random state that transformers saves.",
        remedy="DeepSpeed 0.16.0 or newer for its checkpoints. For files that you trust: "
        "torch.load(…, weights_only=False), or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.",
        pattern=r"Unsupported global: GLOBAL deepspeed\.|Weights only load failed",
        patches=("checkpoint_weights_only", "zero_to_fp32_weights_only"),
        affects={"torch": ">=2.6"},
        role=Role.GENERAL,
    ),
    Signature(
        id="zero_to_fp32_copy_weights_only",
        title="zero_to_fp32.py, run as a program: torch 2.6 loads weights only, and the checkpoint holds more",
        what="Up to 0.15.4 zero_to_fp32 reads with torch.load's default, which torch 2.6 turned to weights_only=True. "
        "dsfix changes what is imported from deepspeed: neither the copy that save_checkpoint leaves in the "
        "checkpoint's directory, which stays what it is when DeepSpeed is upgraded, nor what python -m runs.",
        remedy="For a checkpoint that is your own: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 python zero_to_fp32.py . OUTPUT. "
        'Or with dsfix the installed module: python -c "import dsfix; from deepspeed.utils.zero_to_fp32 import '
        "convert_zero_checkpoint_to_fp32_state_dict as convert; convert('.', 'OUTPUT')\". In 0.15.3 and 0.15.4 "
        "OUTPUT is a directory, and has to exist. Or that of DeepSpeed 0.16.1 or newer: "
        "python -m deepspeed.utils.zero_to_fp32 . OUTPUT.",
        pattern=r'zero_to_fp32\.py", line \d+, in <module>[\s\S]*Weights only load failed',
        affects={"deepspeed": "<0.16.0", "torch": ">=2.6"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/6751",),
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
    Signature(
        id="universal_checkpoint_not_of_adam",
        title="a universal checkpoint is made of the optimizers that have Adam's two moments only",
        what="ds_to_universal reads exp_avg and exp_avg_sq of every parameter. SGD, Adagrad and the like have others: "
        "it ends in a KeyError, and has written nothing that could be loaded.",
        remedy="Resume with as many ranks, without load_universal; or take the weights alone to another number of "
        "ranks: zero_to_fp32, and an optimizer that starts anew.",
        pattern=r"in extract_zero_shards[\s\S]*KeyError: 'exp_avg'",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="zero_to_fp32_of_bf16_optimizer",
        title="zero_to_fp32 does not know the checkpoints of BF16_Optimizer",
        what='bf16 with ZeRO-1 and data_types.grad_accum_dtype "fp32", up to 0.17.5 also without ZeRO, saves the '
        "partitions of another optimizer than ZeRO's, which zero_to_fp32 does not put together.",
        remedy="engine.save_16bit_model; for fp32 weights load the checkpoint into an engine, and ask "
        "deepspeed.utils.safe_get_full_fp32_param of each parameter.",
        pattern=r"bf16_zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt is not a zero checkpoint",
        affects={"deepspeed": ">=0.12.0"},
    ),
)
