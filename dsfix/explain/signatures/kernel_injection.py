"""deepspeed.init_inference with kernels (replace_with_kernel_inject), its models and diffusers; the hybrid engine."""

from __future__ import annotations

from ..signature import Role, Signature, pull

_AUTOTP = "Or replace_with_kernel_inject=False."


SIGNATURES = (
    Signature(
        id="kernels_of_llama_heads",
        title="kernel injection of Llama with transformers 4.48 or later: no attribute 'num_heads' or 'rope_theta'",
        what="transformers 4.48 moved these attributes of LlamaAttention to its config; DeepSpeed through 0.17.2 "
        "reads them where they were. The hybrid engine fails in the same way.",
        remedy=f"DeepSpeed 0.17.3 or later, or transformers below 4.48. {_AUTOTP}",
        pattern=r"module_inject/containers/llama\.py[\s\S]*object has no attribute '(?:num_heads|rope_theta)'",
        affects={"deepspeed": "<0.17.3", "transformers": ">=4.48"},
        evidence=pull(7443),
    ),
    Signature(
        id="kernels_of_fp32_model",
        title="kernel injection: an injected layer has no attribute 'dtype'",
        what="Half kernels get fp32 inputs, and through 0.12.4 the layer looks in the wrong place for the type to cast "
        "them to.",
        remedy=f"DeepSpeed 0.12.5 or later; or a model that is loaded in the dtype given to init_inference. {_AUTOTP}",
        pattern=r"'DeepSpeed\w+Inference' object has no attribute 'dtype'",
        affects={"deepspeed": "<0.12.5"},
        evidence=pull(4814),
    ),
    Signature(
        id="kernels_of_bloom",
        title="kernels for BLOOM: transformers is newer than 4.43.4",
        what="BLOOM changed in transformers 4.44, and DeepSpeed's kernels were not adapted. Since 0.16.3 it says so, "
        "and through 0.18.7 only ends the rank that says it: the others wait.",
        remedy=f"transformers 4.43.4 or earlier. {_AUTOTP}",
        pattern=r"exceeds version 4\.43\.4! After transformers version 4\.43\.4, BLOOM inference",
        affects={"deepspeed": ">=0.16.3"},
        evidence=(*pull(6766), *pull(7890)),
    ),
    Signature(
        id="kernels_of_opt_positions",
        title="OPT with kernels or the hybrid engine: unexpected keyword argument 'position_ids'",
        what="Newer transformers pass position_ids to OPT's embedding of positions, which DeepSpeed has replaced.",
        remedy=f"DeepSpeed 0.16.3 or later, or an older transformers. {_AUTOTP}",
        pattern=r"OPTEmbedding\.forward\(\) got an unexpected keyword argument 'position_ids'",
        affects={"deepspeed": "<0.16.3"},
        evidence=pull(6939),
    ),
    Signature(
        id="inference_moe_flag",
        title="init_inference(moe=True or False): extra inputs are not permitted",
        what="A plain True or False is translated into a key that the section moe does not have.",
        remedy='moe={"enabled": True}, or leave it out instead of False; DeepSpeed 0.19.3 or later.',
        pattern=r"for DeepSpeedInferenceConfig\n\s*moe(?:\.| -> )moe\n",
        affects={"deepspeed": "<0.19.3"},
        evidence=pull(8145),
    ),
    Signature(
        id="diffusers_classes_moved",
        title="init_inference of a diffusers pipeline: module 'diffusers.models' has no attribute 'vae' or others",
        what="diffusers has moved its classes (0.25: autoencoders; later: unets), and DeepSpeed looks for them in one "
        "place: through 0.12.6 in the old one, 0.13.0 and 0.13.1 in autoencoders only.",
        remedy="DeepSpeed 0.13.2 or later.",
        pattern=r"module 'diffusers\.models' has no attribute '(?:vae|autoencoders|unet_2d_condition)'",
        affects={"deepspeed": "<0.13.2"},
        evidence=(*pull(4918), *pull(5065), *pull(5083)),
    ),
    Signature(
        id="diffusers_new_arguments",
        title="init_inference of a diffusers pipeline: unexpected argument of the UNet or the VAE",
        what="Newer diffusers pass arguments that DeepSpeed's stand-ins do not take: timestep_cond and generator "
        "through 0.12.2, added_cond_kwargs through 0.12.4.",
        remedy="DeepSpeed 0.12.5 or later, or an older diffusers.",
        pattern=r"DS(?:UNet|VAE)\.\w+\(\) got an unexpected keyword argument "
        r"'(?:timestep_cond|generator|added_cond_kwargs)'",
        affects={"deepspeed": "<0.12.5"},
        evidence=(*pull(4663), *pull(4770)),
    ),
    Signature(
        id="diffusers_linear_arguments",
        title="init_inference of a diffusers pipeline: linear_layer, incompatible function arguments",
        what="Through 0.12.2 the attention of diffusers calls a kernel without its new argument rope_theta.",
        remedy="DeepSpeed 0.12.3 or later.",
        pattern=r"inference/diffusers_attention\.py[\s\S]*linear_layer_\w+\(\): incompatible function arguments",
        affects={"deepspeed": "<0.12.3"},
        evidence=pull(4656),
    ),
    Signature(
        id="diffusers_triton_dot",
        title="init_inference of a diffusers pipeline with triton 2: dot() does not know trans_b",
        what="The attention kernel through 0.12.2 is written for a triton before 2.0.",
        remedy="DeepSpeed 0.12.3 or later.",
        pattern=r"got an unexpected keyword argument 'trans_b'",
        affects={"deepspeed": "<0.12.3"},
        evidence=(*pull(4541), *pull(4573)),
    ),
    Signature(
        id="hybrid_engine_prints_speed",
        title="hybrid engine without an inference policy: eval(): unsupported operand types, float and NoneType",
        what="Through 0.12.4 eval() prints samples per second; where nothing was injected, the batch size is unknown.",
        remedy='DeepSpeed 0.12.5 or later; or "hybrid_engine": {"enabled": false}, which serves no purpose there.',
        pattern=r"hybrid_engine\.py\", line \d+, in eval[\s\S]*\*: 'float' and 'NoneType'",
        affects={"deepspeed": "<0.12.5"},
        evidence=pull(4789),
    ),
    Signature(
        id="hybrid_engine_quantized_heads",
        title="hybrid engine or kernels: tuple index out of range in get_hidden_heads",
        what="The model's sizes are read from the shapes of its weights. ZeRO-3's are partitioned, thus empty: through "
        "0.9.1 for GPT-J, GPT-Neo and GPT-NeoX, 0.9.3 to 0.10.0 for Llama. Quantized ones have another shape: Llama "
        "through 0.14.4.",
        remedy="DeepSpeed 0.14.5 or later. Otherwise with ZeRO-3 no hybrid engine (DeepSpeed-Chat: without "
        "--enable_hybrid_engine), or ZeRO-2; or weights that are not quantized.",
        pattern=r"in get_hidden_heads[\s\S]*IndexError: tuple index out of range"
        r"|in get_hidden_heads\s+return self\.client_module\.[\w.]+\.weight\.shape\[1\]",  # the end is missing
        affects={"deepspeed": "<0.14.5"},
        evidence=pull(5624),
    ),
    Signature(
        id="heads_not_divisible",
        title="tensor parallelism: a size of the model cannot be divided by the number of ranks",
        what="init_inference splits attention heads and hidden sizes evenly over mp_size (tensor_parallel.tp_size) "
        "ranks; the message names the size and its value.",
        remedy="A tp_size that divides it, which also is the number of processes to start.",
        pattern=r"must be divisible by mp_size \(",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3634",),
    ),
    Signature(
        id="diffusers_pipeline_not_a_module",
        title="init_inference was given a diffusers pipeline, which is not a torch module",
        what="A pipeline is a set of models. Only kernel injection takes it as a whole, and replaces the models it "
        "knows of this release of diffusers.",
        remedy="replace_with_kernel_inject=True with releases that fit each other; otherwise pass one of its models: "
        "pipe.unet = deepspeed.init_inference(pipe.unet, …).module.",
        pattern=r"'\w+Pipeline' object has no attribute 'children'",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2968",),
    ),
    Signature(
        id="kernel_execution_error",
        title="a matrix multiplication in DeepSpeed's kernels failed",
        what="error is the status of cuBLAS: 13 execution failed, 14 internal error, 7 invalid value, 15 not "
        "supported, 8 another GPU architecture, 3 no memory. Most likely the GPU's memory is full; the process has not "
        "chosen its GPU; or the kernels were compiled for another GPU or CUDA.",
        remedy="Smaller batches; torch.cuda.set_device(local_rank) before the model is built; remove "
        "~/.cache/torch_extensions. Without the kernels the error goes: replace_with_kernel_inject=False, or no "
        "DeepSpeed transformer kernel.",
        pattern=r"!!!! kernel execution error\. \(|(?:throws|raises|gives|got|get) (?:a )?kernel execution error",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/454",),
    ),
    Signature(
        id="inference_loader_argument",
        title="init_inference with a checkpoint: get_sd_loader_json lacks checkpoint_engine",
        what="Through 0.7.4 the loader for models without kernel injection calls it without the argument.",
        remedy="DeepSpeed 0.7.5 or later.",
        pattern=r"get_sd_loader_json\(\) missing 1 required positional argument",
        affects={"deepspeed": "<0.7.5"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2222",),
    ),
    Signature(
        id="hybrid_engine_tensor_parallel",
        title="DeepSpeed-Chat: the hybrid engine with tensor parallelism (inference_tp_size above 1)",
        what="For generation the hybrid engine gathers the weights and splits them over inference_tp_size ranks. That "
        "was made and tested for few models (OPT) with ZeRO-3; others, and query, key and value weights of their own "
        "(Llama), fail in shapes, and the ranks of a group need the same prompts.",
        remedy="--inference_tp_size 1; or train without --enable_hybrid_engine.",
        pattern=r"inference_tp_size ?(?:> ?1\b|>= ?2|[=: ] ?(?:[2-9]|\d\d))|tensor parallel and HE\b"
        r"|tensor parallel[^\n]{0,20} with [Hh]ybrid [Ee]ngine",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5656",),
    ),
    Signature(
        id="hybrid_engine_container",
        title="the hybrid engine's container of this model lacks a method",
        what="Only some containers (models) have the methods of the hybrid engine; BLOOM's, for example, through 0.9.2 "
        "is for inference only.",
        remedy="A current DeepSpeed and DeepSpeedExamples; otherwise train without --enable_hybrid_engine.",
        pattern=r"'DS_?\w*Container' object has no attribute '(?:set_params_wo_copy|set_lora_params|fuse_lora"
        r"|unfuse_lora|transform_for_training|transform_for_inference|get_lora_params|get_lora_matched_pair)",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3518",),
    ),
    Signature(
        id="injection_policy_gives_nothing",
        title="kernel injection: a weight of the layer was not found",
        what="The policy of this architecture reads the layer's weights by their names in transformers, and one is "
        "None here: another release of transformers, code of the model's own, or a model that only looks like this "
        "one.",
        remedy="replace_with_kernel_inject=False; or a transformers of the time of this DeepSpeed release.",
        pattern=r"AssertionError: (?:qkvw|qw|kw|vw) can't be None|AssertionError: Policy cannot be None",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="meta_tensors_of_this_model",
        title="kernel injection: this model cannot be loaded from the meta device",
        what="Only some containers load a checkpoint= into meta tensors. INT8 checkpoints (save_mp_checkpoint_path "
        "with int8) can be split further, with their scales, but not merged.",
        remedy="from_pretrained without the meta device and without checkpoint=; INT8: tp_size as many as when it was "
        "saved.",
        pattern=r"Meta tensors are not supported for this model currently|Merging of the checkpoints are not supported"
        r"|We require the quantization scales for larger TP-size"
        r"|merging checkpoints is not supported \(when world_size",
    ),
    Signature(
        id="kernels_and_long_texts",
        title="kernel injection: long prompts or answers fail",
        what="The kernels' memory for keys and values is made for max_out_tokens (max_tokens; 1024 by default) tokens "
        "of prompt and answer together. Longer ones read and write beyond it: an illegal memory access, NaN, or "
        "meaningless text. Since 0.7.0 generate() refuses them (exceeds maximum length), a forward pass does not.",
        remedy="init_inference(…, max_out_tokens=2048) or as many as are needed, and a current DeepSpeed. "
        "replace_with_kernel_inject=False has no such limit.",
        pattern=r"(?:nference\b|DeepSpeedTransformerInference|hybrid_engine)[\s\S]{0,600}(?:long(?:er)? (?:sequences?"
        r"|inputs?|prompts?|texts?)|sequence lengths?|many tokens)[^\n]{0,80}(?:illegal memory|IllegalMemory|error"
        r"|break"
        r"|fails?\b|nan\b|NaN|garbage)"
        r"|(?:illegal memory|Illegal memory)[\s\S]{0,400}\bnference?[^\n]{0,100} long"
        r"|(?:illegal memory access|Illegal memory access)[^\n]{0,60} (?:long sequences|long inputs|long prompts)"
        r"|nference[^\n]{0,80}illegal memory access[\s\S]{0,200}long sequence"
        r"|fail for long (?:inputs|prompts|sequences)[^\n]{0,40}nference",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2062",),
    ),
    Signature(
        id="kernels_fail_autotp_works",
        title="the model runs without kernel injection, and fails with it",
        what="The kernels do not fit this model: they know some architectures, mostly with as many key heads as query "
        "heads (no grouped queries), in the form that transformers had when this DeepSpeed was released.",
        remedy="replace_with_kernel_inject=False (AutoTP); for kernels another inference engine.",
        pattern=r"replace_with_kernel_inject ?= ?False[^\n]{0,80}(?:works|work well|is fine|no problem)[\s\S]{0,300}"
        r"replace_with_kernel_inject ?= ?True[^\n]{0,80}(?:error|fail|crash)"
        r"|replace_with_kernel_inject ?= ?True[^\n]{0,80}(?:error|fails|crash)[\s\S]{0,300}"
        r"replace_with_kernel_inject ?= ?False[^\n]{0,80}(?:works|work well|is fine|no problem)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4261",),
    ),
    Signature(
        id="linear_layer_of_0_7_0",
        title="init_inference with an injection_policy in 0.7.0: empty() received an invalid combination of arguments",
        what="0.7.0 gives a weight to the replaced linear layer in the place of its shape.",
        remedy="DeepSpeed 0.7.1 or later.",
        pattern=r"empty\(\) received an invalid combination of arguments - got \(Parameter, ",
        affects={"deepspeed": "==0.7.0"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2246",),
    ),
)
