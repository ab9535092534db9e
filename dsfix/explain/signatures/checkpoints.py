"""Saved checkpoints: loading, converting, changing the number of ranks."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="weights_only_load",
        title="torch 2.6 loads only weights, but the file contains other objects",
        what="Since torch 2.6 torch.load rejects objects that are not tensors. DeepSpeed's checkpoints contain some, "
        "and so do the random states saved by transformers.",
        remedy="DeepSpeed 0.16.0 or later for its checkpoints. For files that you trust: "
        "torch.load(…, weights_only=False), or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.",
        pattern=r"Unsupported global: GLOBAL deepspeed\.|Weights only load failed",
        patches=("checkpoint_weights_only", "zero_to_fp32_weights_only"),
        affects={"torch": ">=2.6"},
        role=Role.GENERAL,
    ),
    Signature(
        id="zero_to_fp32_copy_weights_only",
        title="zero_to_fp32.py as a script: torch 2.6 loads only weights, but the checkpoint contains other objects",
        what="Through 0.15.4 zero_to_fp32 uses torch.load's default, which torch 2.6 changed to weights_only=True. "
        "save_checkpoint writes a copy of it into the checkpoint's directory, which an upgrade of DeepSpeed does not "
        "change. It does not import dsfix by itself, and dsfix patches it if it is the installed release's.",
        remedy="python -m dsfix run python zero_to_fp32.py . OUTPUT; for a copy from another release python -m dsfix "
        "run python -m deepspeed.utils.zero_to_fp32 . OUTPUT. In 0.15.3 and 0.15.4 OUTPUT is a directory and must "
        "exist. Without dsfix, for your own checkpoint: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its environment.",
        pattern=r'zero_to_fp32\.py", line \d+, in <module>[\s\S]*Weights only load failed',
        affects={"deepspeed": "<0.16.0", "torch": ">=2.6"},
        evidence=pull(6751),
    ),
    Signature(
        id="zero_to_fp32_devices",
        title="zero_to_fp32: the ranks' partitions are on several devices",
        what="The script joins partitions that it should have loaded to the CPU; they are on the GPUs that saved "
        "them. Most likely an old or a changed copy of the script (since 0.4.2 it passes map_location), or code of "
        "one's own that calls its functions.",
        remedy="python -m deepspeed.utils.zero_to_fp32 . OUTPUT with a current DeepSpeed, or torch.load(…, "
        "map_location='cpu') in the copy.",
        pattern=r"zero_to_fp32\.py[\s\S]*Expected all tensors to be on the same device",
    ),
    Signature(
        id="zero_to_fp32_counts",
        title="zero_to_fp32: the partitions do not have the elements, or the stage, that the script expects",
        what="Most likely an old copy of the script: through 0.9.5 it knows the stages 2 and 3 only, and in 0.5.3 it "
        "assumes another alignment of ZeRO-2's partitions. save_checkpoint leaves the copy of its own release. "
        "Otherwise the files are not of one step.",
        remedy="python -m deepspeed.utils.zero_to_fp32 . OUTPUT with a current DeepSpeed, instead of the copy.",
        pattern=r"unknown zero stage \d|consumed \d+ numels out of \d+ - something is wrong",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/3936",
            "https://github.com/deepspeedai/DeepSpeed/pull/1380",
        ),
    ),
    Signature(
        id="another_world_size",
        title="the checkpoint was saved with a different number of ranks",
        what="The optimizer's state is partitioned over the data-parallel ranks and must be loaded by as many. MoE "
        "with sequence parallelism: through 0.18.3 the checkpoint names a wrong number.",
        remedy="Convert it: python -m deepspeed.checkpoint.ds_to_universal --input_folder … --output_folder …, and "
        '"checkpoint": {"load_universal": true}. Or load with load_optimizer_states=False; 0.12 undoes that in the '
        "next step, unless dsfix's zero_load_without_optimizer is applied.",
        pattern=r"used a DP world size of \d+ but the current world size is",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="checkpoint_writer_roles",
        title="a checkpoint writer without data_parallel needs ranks that only ZeRO-3 or a model-parallel unit has",
        what="checkpoint.writer in the config does not set how data-parallel ranks share the writing; with ZeRO-0 to "
        "ZeRO-2, without a model-parallel unit and without MoE, the writer does not know its rank.",
        remedy='Set "data_parallel": "replica" in checkpoint.writer.',
        pattern=r"'UniversalParallelInfo' object has no attribute 'dp_rank'",
        affects={"deepspeed": ">=0.17.1"},
    ),
    Signature(
        id="mixed_checkpoint_directory",
        title="zero_to_fp32 finds a different number of files than the checkpoint records",
        what="The directory contains files of two checkpoints with different numbers of ranks, or not all ranks have "
        "saved (nodes without a shared file system).",
        remedy="Use the directory of a single step (global_step…) with the files of all nodes.",
        pattern=r"_optim_states\.pt' under .* but found \d+ files",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="universal_checkpoint_not_of_adam",
        title="universal checkpoints support only optimizers with Adam's two moments",
        what="ds_to_universal reads exp_avg and exp_avg_sq of every parameter. SGD, Adagrad etc. have a different "
        "state: it fails with a KeyError and writes nothing that can be loaded.",
        remedy="Resume with the same number of ranks, without load_universal; or change the number of ranks with the "
        "weights only: zero_to_fp32 and a new optimizer.",
        pattern=r"in extract_zero_shards[\s\S]*KeyError: 'exp_avg'",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="zero_to_fp32_of_bf16_optimizer",
        title="zero_to_fp32 does not support checkpoints of BF16_Optimizer",
        what='bf16 with ZeRO-1 and data_types.grad_accum_dtype "fp32", through 0.17.5 also without ZeRO, uses an '
        "optimizer whose partitions zero_to_fp32 cannot merge.",
        remedy="Use engine.save_16bit_model; for fp32 weights load the checkpoint into an engine and call "
        "deepspeed.utils.safe_get_full_fp32_param for each parameter.",
        pattern=r"bf16_zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt is not a zero checkpoint",
        affects={"deepspeed": ">=0.12.0"},
    ),
)
