"""MiCS (mics_shard_size), which 0.19.7 removed, and ZenFlow."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="mics_offload_ratio",
        title="MiCS: unexpected keyword argument 'offload_ratio'",
        what="0.12.3 gives MiCS's optimizer an argument that it does not know.",
        remedy="DeepSpeed 0.12.4 or later; or ZeRO-3 without mics_shard_size.",
        pattern=r"__init__\(\) got an unexpected keyword argument 'offload_ratio'",
        affects={"deepspeed": "==0.12.3"},
        evidence=pull(4749),
    ),
    Signature(
        id="mics_without_its_init",
        title="Sharded parameters don't have the MiCS_CommGroups attached",
        what="mics_shard_size needs a model that was made under deepspeed.zero.MiCS_Init, or under none; this one was "
        "made under zero.Init, as transformers' from_pretrained and Lightning do it.",
        remedy="Make the model under deepspeed.zero.MiCS_Init, or before the config exists (transformers: before "
        "TrainingArguments); or ZeRO-3 without mics_shard_size, which 0.19.7 removed.",
        pattern=r"Sharded parameters don't have the MiCS_CommGroups attached",
        affects={"deepspeed": "<0.19.7"},
        evidence=(
            "https://github.com/huggingface/accelerate/issues/3442",
            "https://github.com/Lightning-AI/pytorch-lightning/issues/20378",
        ),
    ),
    Signature(
        id="mics_cannot_resume",
        title="MiCS: load_state_dict() got an unexpected keyword argument 'param_shapes'",
        what="Since 0.14.5 the engine passes the parameters' shapes, which only a universal checkpoint needs, to the "
        "optimizer's load_state_dict; that of MiCS does not take them.",
        remedy="load_checkpoint(…, load_optimizer_states=False) loads the weights alone. 0.19.7 removed MiCS: ZeRO-3 "
        "with zero_hpz_partition_size.",
        patches=("mics_resume_param_shapes",),
    ),
    Signature(
        id="zenflow_offloaded_parameters",
        title="ZenFlow + ZeRO-3 with offload_param: narrow() cannot be applied to a 0-dim tensor",
        what="Through 0.19.1 ZenFlow's optimizer takes the parameters to be on the GPU; on NVMe there is only a "
        "placeholder.",
        remedy="DeepSpeed 0.19.2 or later; or no offload_param, or no zenflow.",
        pattern=r"zenflow[\s\S]*narrow\(\) cannot be applied to a 0-dim tensor",
        affects={"deepspeed": ">=0.17.5,<0.19.2"},
        role=Role.GENERAL,
        evidence=(*pull(8042), "https://github.com/deepspeedai/DeepSpeed/issues/7686"),
    ),
    Signature(
        id="zenflow_empty_selection",
        title="ZenFlow + ZeRO-3: tensors used as indices must be long, int, byte or bool tensors",
        what="0.18.1 to 0.19.0 fail on a rank that has none of the selected columns of a weight; the others wait.",
        remedy="DeepSpeed 0.19.1 or later; or a larger topk_ratio.",
        pattern=r"zenflow/engine_stage3\.py[\s\S]*IndexError: tensors used as indices must be long",
        affects={"deepspeed": ">=0.18.1,<0.19.1"},
        evidence=(*pull(8012), "run: 0.18.3"),
    ),
    Signature(
        id="mics_group_size",
        title="MiCS: mics_shard_size does not fit the ranks or the set-up",
        what="It must divide the number of ranks; hierarchical gathering needs shards over several nodes, and MiCS "
        "does not offload to the CPU.",
        remedy="mics_shard_size as the GPUs of a node or a divisor of it, without mics_hierarchical_params_gather on "
        "one node, without offload; or ZeRO-3 with zero_hpz_partition_size (0.19.7 removed MiCS).",
        pattern=r"dp group size is not dividable by dp_shard_size|(?:replicate|shard) groups must have the same size"
        r"|sharding spans on single node, no need|Local sharding has no support for CPU offloading"
        r"|number of shard groups must equal",
        affects={"deepspeed": "<0.19.7"},
    ),
    Signature(
        id="zenflow_settings",
        title="ZenFlow: a setting that it does not go with",
        what="It needs offload_optimizer to the CPU, overlap_comm for its selective optimizer, torch 2.1 or later, and "
        "intervals that fit each other.",
        remedy='"offload_optimizer": {"device": "cpu"}, "overlap_comm": true; "select_interval" at least '
        '"update_interval", or both "auto"; or no "zenflow".',
        pattern=r"Zenflow must be used with cpu offload|offload selective optimizer should be used with overlap_comm"
        r"|Select interval must be greater or equal to update|auto select strategy, select_interval"
        r"|ZenFlow (?:features are|adamw function is) not available|later to enable ZenFlow",
    ),
    Signature(
        id="zenflow_process_died",
        title="ZenFlow: the process of the optimizer has ended",
        what="The optimizer steps in a process of its own. Its error is in its own traceback above; without one most "
        "likely the host's memory or /dev/shm was full.",
        remedy='The traceback above; docker run --shm-size=16g; more host memory; no "zenflow" tells whether it is '
        "that.",
        pattern=r"ZenFlow optimizer process (?:exited|failed)|Optimizer process did not (?:finish|initialize)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="superoffload_refuses",
        title="SuperOffload: its optimizer on the CPU does not answer, or the GPU is not NVIDIA's",
        what="Its Adam runs in a process of its own on cores of the host: too few cores or a host that is busy, a "
        "process that died (its error is above), or another accelerator than CUDA.",
        remedy='A larger "cpuadam_cores_perc" (below 1), cores bound to the ranks (numactl); or offload_optimizer '
        "without super_offload.",
        pattern=r"SuperOffload CPU optimizer timeout after|SuperOffload only supports NVIDIA",
        role=Role.POSSIBLE,
    ),
)
