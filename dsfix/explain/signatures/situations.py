"""Kinds of situations that titles and sentences describe, and that no message names."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="evaluation_diverges",
        title="the evaluation hangs",
        what="The ranks must do the same in it. Most likely they have different numbers of batches, it runs on "
        "rank 0 only (with ZeRO-3 each forward pass gathers weights on all ranks), generated texts end at "
        "different lengths, or results of different shapes are gathered. Otherwise it is only slow: rank 0 "
        "computes the metrics alone, longer than NCCL's timeout.",
        remedy="All ranks evaluate, with the same number of batches (DistributedSampler, drop_last); "
        "generate(synced_gpus=True) under ZeRO-3; accelerator.pad_across_processes before gathering, "
        "gather_for_metrics; a longer ddp_timeout. py-spy dump --pid PID on each rank shows where it waits.",
        pattern=phrases(
            "hangs |hang |hanging |stuck |freezes |卡住 |卡死 ",
            "during |in |on |while |when |after ",
            "the |",
            "evaluation|validation|evaluating|validating",
        )
        + r"|(?:评估时|验证时|评估阶段|验证阶段|评估过程|验证过程)[^\n]{0,20}(?:卡住|卡死)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="pipeline_saved_by_layers",
        title="pipeline parallelism: only a part of the model is saved",
        what="Each stage has its layers only. PipelineEngine.save_checkpoint writes a file for each layer "
        "(layer_…-model_states.pt), all stages together; save_16bit_model and state_dict() do not give the "
        "whole model.",
        remedy="save_checkpoint on all ranks, then load the layers' files and put their state dicts together under "
        "the model's own names.",
        pattern=r"(?i:pipeline|pipe)[^\n]{0,60}(?:save_16bit_model|save_fp16_model)"
        r"|PipelineEngine expects module_state_dict\(\) to be called from save_checkpoint",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="offload_leaves_gpu_empty",
        title="offload of parameters leaves the GPU's memory mostly unused",
        what="That is how it works: ZeRO-3 brings weights to the GPU for the modules that run next, and releases "
        "them afterwards; it does not fill the memory that is there. How many stay is set by "
        "stage3_max_live_parameters and stage3_max_reuse_distance (1e9 each), stage3_prefetch_bucket_size "
        "(5e7) and stage3_param_persistence_threshold (1e5).",
        remedy="Larger values of stage3_max_live_parameters and the others; larger batches, which move the same "
        "weights; no offload_param if the weights fit without it.",
        pattern=r"(?i:offload)[^\n]{0,60}(?:does not|doesn't|not) (?:fully )?(?:utilize|use) (?:the )?GPU memory",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="values_changed_by_the_script",
        title="changing parameters or gradients from the script",
        what="In fp16 and bf16 the weights that the model computes with are copies: each step of the optimizer "
        "writes them anew from its fp32 weights, which ZeRO keeps in partitions. A change of param.data is "
        "gone after the next step, and under ZeRO-3 the parameter must be gathered for it as well. ZeRO's "
        "gradients are in its buffers, not in param.grad.",
        remedy="deepspeed.utils.safe_set_full_fp32_param(param, value) (0.10.3 and later), and safe_get_full_grad, "
        "safe_set_full_grad (0.15.3) between backward and step, all on every rank. Before training starts: "
        "change the model before deepspeed.initialize, under ZeRO-3 within GatheredParameters(params, "
        "modifier_rank=0).",
        pattern=phrases(
            "manipulate |modify |overwrite |change ",
            "the |",
            "parameters |weights |gradients |gradient ",
            "of model when training|during training|while training|in training",
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2424",),
    ),
)
