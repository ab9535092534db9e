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
)
