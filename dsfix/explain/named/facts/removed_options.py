"""Sections of the config that current releases have removed: what they need where they still exist."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_elasticity",
        names=(
            "max_train_batch_size",
            "micro_batch_sizes",
            "ignore_non_elastic_batch_info",
            "DEEPSPEED_ELASTICITY_CONFIG",
            "elastic_training",
        ),
        title="elasticity: it chooses the batch sizes, and is removed in 0.19.8",
        what="With elasticity enabled the batch sizes of the config are refused (unless "
        "ignore_non_elastic_batch_info), and a global batch size up to max_train_batch_size is chosen that many "
        "numbers of GPUs divide; other numbers of ranks are refused. It does not make a checkpoint loadable by other "
        "ranks (universal checkpoints do). 0.19.8 refuses the section.",
        remedy="ds_elastic -c CONFIG -w RANKS shows the result; without the section train_micro_batch_size_per_gpu "
        "and gradient_accumulation_steps as usual.",
        evidence=(
            "deepspeed.elasticity.elasticity",
            "https://github.com/deepspeedai/DeepSpeed/issues/8489",
        ),
    ),
    Fact(
        id="of_compression_training",
        names=(
            "compression_training",
            "init_compression",
            "redundancy_clean",
            "layer_reduction",
            "weight_quantization",
            "activation_quantization",
            "sparse_pruning",
            "head_pruning",
            "row_pruning",
            "quantize_training",
        ),
        title="compression_training: it simulates, and is removed in 0.19.7",
        what="init_compression(model, config) replaces layers by ones that round or mask while training; weights "
        "keep their size and speed. redundancy_clean removes pruned rows, heads and layers only; it looks for modules "
        "by name, so a wrong name compresses nothing, and does not know ZeRO-3's partitioned weights. 0.19.7 removed "
        "it (with MoQ) and refuses the keys.",
        remedy="DeepSpeed 0.19.6 or older; quantized inference with another library.",
        evidence=(
            "deepspeed.compression.compress",
            "https://github.com/deepspeedai/DeepSpeed/issues/8489",
        ),
    ),
    Fact(
        id="of_sparse_attention",
        names=(
            "sparse_attention",
            "SparseSelfAttention",
            "SparsityConfig",
            "FixedSparsityConfig",
            "BigBirdSparsityConfig",
        ),
        title="sparse attention: for torch 1, triton 1.0.0, removed in 0.19.7",
        what="Its operator is for torch before 2.0 with triton 1.0.0 and CUDA, GPUs from V100 on, fp16, not ROCm; "
        "the section of the config only passes numbers to a model that asks for them. ds_report names it as not "
        "compatible everywhere else, which is harmless. 0.19.7 removed it and refuses the section.",
        remedy="Flash attention or torch's flex_attention; DS_BUILD_SPARSE_ATTN=0 if it stops an installation.",
        evidence=(
            "op_builder/sparse_attn.py",
            "https://github.com/deepspeedai/DeepSpeed/issues/8489",
        ),
    ),
    Fact(
        id="of_progressive_layer_drop",
        names=(
            "progressive_layer_drop",
            "pld_enabled",
            "graph_harvesting",
        ),
        title="progressive_layer_drop, graph_harvesting: removed in 0.19.8",
        what="progressive_layer_drop passes progressive_layer_drop and pld_theta to the forward pass, which a model "
        "that was not written for it refuses as unexpected arguments. graph_harvesting is for bf16's optimizer only. "
        "0.19.8 refuses both keys, also if they are off.",
        remedy="Delete the keys.",
        evidence=(
            "deepspeed.runtime.engine.DeepSpeedEngine._forward_prologue",
            "https://github.com/deepspeedai/DeepSpeed/issues/8489",
        ),
    ),
    Fact(
        id="at_removed_keys",
        names=("deepspeed/runtime/config.py:_reject_removed_config_keys",),
        title="the config has a section that this release removed",
        what="0.19.7 refuses nebula, compression_training, quantize_training, sparse_attention and MiCS; 0.19.8 also "
        "amp, sparse_gradients, eigenvalue, elasticity, graph_harvesting, curriculum_learning (top level), "
        'progressive_layer_drop and zeropp_loco_param; also with "enabled": false.',
        remedy="Delete the key, or DeepSpeed 0.19.6; `python -m dsfix check CONFIG` lists them.",
        affects={"deepspeed": ">=0.19.7"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8489",),
    ),
)
