"""deepspeed.init_inference, tensor and sequence parallelism, universal checkpoints."""

from __future__ import annotations

from ..phrases import NO_ERROR
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
        id="policy_is_a_class",
        title="init_inference before 0.8.1: neither kernels nor an injection_policy",
        what="With replace_with_kernel_inject=False (the default) and without injection_policy these releases take "
        "the class of the kernels' policy for the names of the layers to divide. 0.7.4 and 0.7.5 do not fail, and "
        "divide nothing.",
        remedy="replace_with_kernel_inject=True, if the kernels know the model; or injection_policy={Layer: "
        "('attention.out_proj', 'mlp.c_proj')} with the layers whose output is summed; or DeepSpeed 0.8.1 or later, "
        "which finds these layers itself.",
        pattern=r"argument of type '(?:ABCMeta|type)' is not iterable",
        affects={"deepspeed": ">=0.5.7,<0.8.1"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2265",),
    ),
    Signature(
        id="layer_in_two_shards",
        title="KeyError for a layer's key or value weight: not in the file that has its query weight",
        what="init_inference of a model on the meta device (checkpoint=, --use_meta_tensor) loads file by file, and "
        "takes query, key and value of a layer from one: a checkpoint whose files cut a layer in two fails at that "
        "layer, though no weight is missing. Otherwise the file has other names than the code expects.",
        remedy="Save the checkpoint again in files that no layer is cut by (save_pretrained with another "
        "max_shard_size, or one file); or load the model with from_pretrained, without the meta device.",
        pattern=r"KeyError: ['\"][\w.]*\d\.[\w.]*(?:k_proj|v_proj|\.key|\.value)\.(?:weight|bias)['\"]",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3871",),
    ),
    Signature(
        id="kernels_do_not_fit_the_model",
        title="Merging tensors is not allowed here: a weight does not fit kernel injection or AutoTP",
        what="A weight has another shape than the split over the ranks expects. Most likely the kernels: they expect "
        "separate query, key and value weights of equal size; models with grouped queries (Llama 3, Mistral, Qwen 2) "
        "have others. Otherwise the weights are quantized (load_in_4bit), in a shape of their own.",
        remedy="replace_with_kernel_inject=False (AutoTP), the model in 16 bits, or another inference engine.",
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
    Signature(
        id="cut_in_init_inference",
        title="an error in deepspeed.init_inference; its message is not in the log",
        what="It cannot be told without the message. Seen here: the model does not fit: the kernels "
        "(replace_with_kernel_inject=True) know some architectures, in the form that transformers or diffusers had "
        "when this DeepSpeed was released, and neither other numbers of key heads nor quantized weights everywhere; "
        "AutoTP (False) goes by the names of layers; a checkpoint= whose names or files do not fit, or the memory. "
        "Before 0.8.1 (no AutoTP) the call fails for models that it has kernels for, if it gets neither "
        "replace_with_kernel_inject=True nor an injection_policy.",
        remedy="The last line of the traceback tells. Before 0.8.1: replace_with_kernel_inject=True, or an "
        "injection_policy. Later: replace_with_kernel_inject=False, tp_size 1, and the model loaded by "
        "from_pretrained without checkpoint= show one by one which part it is; then another release of transformers "
        "or of DeepSpeed.",
        pattern=r"(?:deepspeed/__init__\.py\", line \d+, in init_inference\n"
        r"|deepspeed/inference/engine\.py\", line \d+, in (?:_apply_injection_policy|_load_checkpoint"
        r"|load_model_with_checkpoint)\n"
        r"|in \S+\n[^\n]*deepspeed\.init_inference\([^\n]*\n"
        r"|module_inject/replace_module\.py\", line \d+, in _?replace_(?:module|transformer_layer|with_policy|fn)\n)"
        + NO_ERROR,
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3038",),
    ),
    Signature(
        id="init_inference_fails",
        title="deepspeed.init_inference does not work for a model",
        what="Most likely the model: the kernels (replace_with_kernel_inject=True) exist for some architectures, and "
        "for the form that transformers or diffusers had at the time of the DeepSpeed release; AutoTP (False) splits "
        "layers by their names. Otherwise the start: one process per GPU (deepspeed --num_gpus N), and tp_size "
        "(mp_size) as many.",
        remedy="The last line of the traceback tells. replace_with_kernel_inject=False, then one GPU, then another "
        "release of transformers show which it is.",
        pattern=r"(?m:^)(?![^\n]{0,300}(?i:zero.?inference))[^\n]{0,300}?"
        r"(?:init_inference(?:\(\))?`?[^\n]{0,30}(?:fails?\b|failed|failing|\berrors?\b|not work|n't work|broken"
        r"|crash|报错|失败)"
        r"|(?:[Ee]rrors? (?:on|in|with|when)|[Ff]ailed|[Ff]ails|[Ii]ssues? with|[Pp]roblems? with)[^\n]{0,30}"
        r"(?:init_inference|inference tutorial|DeepSpeed Inference\b|DeepSpeed inference\b|DeepSpeed-Inference\b"
        r"|deepspeed inference\b"
        r"|deepspeed-inference\b))",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4742",),
    ),
    Signature(
        id="inference_loader_of_dictionary",
        title="init_inference with checkpoint= but without kernel injection: 'dict' object has no attribute 'load'",
        what="For descriptions of the types ds_model and bloom the loader is a dictionary, which through 0.9.2 only "
        "kernel injection can read.",
        remedy="replace_with_kernel_inject=True where there are kernels for the model; otherwise DeepSpeed 0.9.3 or "
        "later, or from_pretrained without the meta device and without checkpoint=.",
        pattern=r"inference/engine\.py[\s\S]{0,400}'dict' object has no att\w+ 'load'"
        r"|'dict' object has no att\w+ 'load'[\s\S]{0,200}inference/engine\.py",
        affects={"deepspeed": "<0.9.3"},
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/224",),
    ),
    Signature(
        id="meta_tensors_without_kernels",
        title="init_inference: a checkpoint (meta tensors) without kernel injection",
        what="Through 0.9.2 a checkpoint= is loaded into a model on the meta device only with "
        "replace_with_kernel_inject=True; later AutoTP does it as well, for layers that it knows.",
        remedy="replace_with_kernel_inject=True (inference-test.py: --use_kernel) where there are kernels for the "
        "model; otherwise DeepSpeed 0.9.3 or later, or from_pretrained without the meta device (no --use_meta_tensor) "
        "and without checkpoint=.",
        pattern=r"(?:oading (?:a )?checkpoint|load_checkpoint|nitialization fails|meta tensor|\bfails\b)[^\n]{0,80}"
        r"(?:without kernel inject|not using kernel inject|not to use replace_with_kernel_inject"
        r"|not use replace_with_kernel_inject|without replace_with_kernel_inject|not using replace_with_kernel_inject)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3292",),
    ),
    Signature(
        id="inference_checkpoint_type",
        title="init_inference: the description of the checkpoint has a type that is not known",
        what='The JSON (or dictionary) of checkpoint= takes the types Megatron, bloom and ds_model; "DeepSpeed" is '
        "none. A checkpoint of training is not loaded by it.",
        remedy='Files of the model as transformers has them: {"type": "ds_model", "checkpoints": [files], "version": '
        "1.0}, with replace_with_kernel_inject=True. From a training checkpoint: zero_to_fp32, load the weights into "
        "the model, and init_inference without checkpoint=.",
        pattern=r"checkpoint type is not supported|checkpoint version: \S+ is not supported",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1172",),
    ),
    Signature(
        id="init_inference_arguments",
        title="init_inference refuses an argument",
        what="The message names it. dtype: float32, float16 or bfloat16 (0.7 and older refuse bfloat16); since 0.15.2 "
        "int8 is refused, as no accelerator lists it, and so is a type that the device does not have (fp16 on some "
        "CPUs). tp_size (mp_size) is a number from 1, checkpoint a path or a dictionary.",
        remedy="dtype=torch.half or torch.bfloat16 (CPU: torch.float or torch.bfloat16).",
        pattern=r"Data type \S+\s+is\s+not supported by \S+ accelerator|torch\.\w+ not supported, valid dtype: "
        r"|mp_size must be an int >= 1, got|checkpoint must be None, str or dict"
        r"|injection_dict must be None or a dict|Injection policy layer'",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/8578",),
    ),
    Signature(
        id="int8_inference",
        title="init_inference with int8",
        what="dtype=torch.int8 quantizes the weights of injected kernels only, for few architectures, and much of it "
        "never worked: illegal memory accesses, wrong shapes or meaningless output with kernels, no effect without "
        "them. It is not faster: the weights are unpacked for 16-bit kernels. Since 0.15.2 init_inference refuses it.",
        remedy="dtype=torch.half; for quantized weights bitsandbytes, or an inference engine with int8 kernels.",
        pattern=r"(?m:^)(?=[^\n]{0,300}(?:(?<!_)[Ii]nt[ -]?8\b|INT[ -]?8\b|8-?bit))[^\n]{0,300}?(?:nference\b"
        r"|init_inference|loading/inference|torch\.int8| int8 forward)|'q_int8': True",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2956",),
    ),
    Signature(
        id="inference_gives_no_speedup",
        title="DeepSpeed-Inference is not faster than without it, or slower or as large on several GPUs",
        what="Kernels are only in use where the model is one that DeepSpeed knows and replace_with_kernel_inject=True; "
        "they save the most where the GPU waits for Python (small models, batch 1, short texts), and the first calls "
        "compile. init_inference splits a model over its ranks only with tensor_parallel (tp_size), and only layers "
        "that its kernels or AutoTP know; each rank loads the whole model first. The ranks then wait for each other in "
        "each layer, which costs more than it gains where the model fits one GPU. ZeRO gathers all weights for each "
        "token.",
        remedy="Measure after warming up, with torch.cuda.synchronize(), the same dtype and number of tokens. One GPU, "
        "and a process per GPU for more requests, if the model fits; otherwise tp_size as the number of ranks, and the "
        "model on the CPU or the meta device (checkpoint=) until then; for many requests vLLM.",
        pattern=r"(?m:^)(?=[^\n]{0,300}(?:not improve|n't improve|slow(?:ing|s)? down|slower|no speedup|any speedup"
        r"|not faster"
        r"|more slow\b))(?=[^\n]{0,300}(?:[Dd]eep[Ss]peed|ernel))(?![^\n]{0,300}(?i:zero|stage|offload))"
        r"[^\n]{0,300}?nference"
        r"|(?i:inference)[^\n]{0,40}(?:not faster|no speedup|slower on|is slower|performance is lower)"
        r"|[Ll]atency is more with \d+ GPUs",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2606",),
    ),
    Signature(
        id="zero_inference_quantization",
        title="ZeRO-Inference: the quantization of the weights refuses a setting",
        what="_init_group_wise_weight_quantization needs weight_quantization (quantized_initialization or "
        "post_init_quant) in the config, weights in fp16, num_bits 4 or 8, symmetric false, and group sizes that "
        "divide the weights.",
        remedy="The message names the setting; load the model with torch_dtype=torch.float16.",
        pattern=r"Please provide quantization config in ds_config|Model weight is expected in half"
        r"|Only INT4 and INT8 quantization is supported|Only asymmetric quantization is supported at this moment"
        r"|matched multiple quantization key word",
    ),
)
