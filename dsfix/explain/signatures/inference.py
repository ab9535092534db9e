"""deepspeed.init_inference, tensor and sequence parallelism, universal checkpoints."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="autotp_does_not_know_the_model",
        title="AutoTP cannot shard this model",
        what="Without kernel injection DeepSpeed derives from the names of linear layers which outputs must be "
        "summed. It finds none in this model, or the model is supported by kernels only.",
        remedy="Pass injection_policy={Layer: ('attention.output', 'mlp.output')} with the layers whose output is "
        "summed, or replace_with_kernel_inject=True if DeepSpeed has kernels for it.",
        pattern=r"Not able to determine model policy automatically|AutoTP not supported for model",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3628",),
    ),
    Signature(
        id="kernels_do_not_fit_the_model",
        title="kernel injection does not fit this model",
        what="DeepSpeed's inference kernels expect separate query, key and value weights of equal size; models with "
        "grouped queries (Llama 3, Mistral, Qwen 2) have others.",
        remedy="replace_with_kernel_inject=False (AutoTP), or another inference engine.",
        pattern=r"Merging tensors is not allowed here",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7282",),
    ),
    Signature(
        id="shapes_do_not_multiply",
        title="mat1 and mat2 shapes cannot be multiplied",
        what="Two layers do not fit. With DeepSpeed most likely: tensor parallelism (AutoTP, init_inference) that "
        "shards a layer without its counterpart, because its policy does not know the model; a 4-bit weight (1xN) "
        "used as a plain one; or embeddings that were resized on one side.",
        remedy="AutoTP: an injection_policy that names all layers whose output is summed, or another release. "
        "Otherwise compare the shapes with the model on one GPU without DeepSpeed.",
        pattern=r"mat1 and mat2 shapes cannot be multiplied",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3130",),
    ),
    Signature(
        id="inference_checkpoint_description",
        title="init_inference: the checkpoint's description lacks a key",
        what='The JSON of checkpoint= needs "type", "checkpoints", "version", "parallelization", and more for sharded '
        "ones; another release wrote it or expects another form.",
        remedy='Add "parallelization": "pp" (not sharded) or "tp" (saved by save_mp_checkpoint_path), or write it '
        "anew with the installed release.",
        pattern=r"KeyError: '?parallelization",
        evidence=pull(2132),
    ),
    Signature(
        id="not_divisible_by_ranks",
        title="a size is not divisible by the parallel degree",
        what="Heads, layers, experts or the sequence are split over the ranks of tensor, sequence or expert "
        "parallelism and must be divisible by their number.",
        remedy="Another degree (tp_size, sequence_parallel_size, ep_size), or padding of the sequence to a multiple "
        "of it (labels of -100, and a mask).",
        pattern=r"attention_heads require to be divisible by the world_size"
        r"|(?:isn't|not) divisible by (?:sp-size|SP size"
        r"|sequence_parallel_size|tp_size|tensor parallel world size)|should be divisible by expert parallel size"
        r"|divisible by (?:the )?(?:sequence|tensor|expert|context|Sequence|Tensor|Expert|Context)[ _-][Pp]arallel"
        r"|divisible by the number of (?:gpus|GPUs|ranks)",
    ),
    Signature(
        id="universal_checkpoint_incomplete",
        title="ds_to_universal: the checkpoint lacks what it reads",
        what="It reads param_shapes, the optimizer's state and universal_checkpoint_info of a dense model trained "
        "with ZeRO. Most likely the model has DeepSpeed's MoE layers, which most releases do not support, or the "
        "checkpoint was saved without ZeRO or by another framework.",
        remedy="Resume with the same number of ranks and without load_universal; MoE: a release whose notes name it.",
        pattern=r"KeyError: '?(?:param_shapes|universal_checkpoint_info|optimizer_state_dict)\b",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5716",),
    ),
    Signature(
        id="hybrid_engine",
        title="DeepSpeed-Chat's hybrid engine does not fit this model or this setting",
        what="It injects inference kernels into a model that is trained, for few architectures (OPT, BLOOM, LLaMA, "
        "GPT-NeoX). Other models, LoRA with ZeRO-3, and inference_tp_size above 1 fail in it in many ways.",
        remedy='Train without --enable_hybrid_engine ("hybrid_engine": {"enabled": false}), or inference_tp_size 1.',
        pattern=r"_inference_containers\[|hybrid_engine\.py\", line \d+|hybrid engine is enabled|in _fuse_lora"
        r"|not support[^\n]{0,60} hybrid engine",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeedExamples/issues/456",
            "https://github.com/deepspeedai/DeepSpeedExamples/issues/628",
            "https://github.com/deepspeedai/DeepSpeed/issues/4302",
        ),
    ),
    Signature(
        id="training_config_for_inference",
        title="init_inference was given a config of deepspeed.initialize",
        what="init_inference has keys of its own: dtype, tensor_parallel, replace_with_kernel_inject … ZeRO, also for "
        "inference (ZeRO-Inference, offload), goes through deepspeed.initialize.",
        remedy="engine = deepspeed.initialize(model=model, config=…)[0]; engine.module.eval(). Or init_inference with "
        "its own keys, without zero_optimization, fp16, train_batch_size.",
        pattern=r"validation errors? for DeepSpeedInferenceConfig"
        r"(?=[\s\S]{0,400}?(?:zero_optimization|train_\w*batch_size))",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2890",),
    ),
)
