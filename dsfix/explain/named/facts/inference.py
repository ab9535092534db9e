"""deepspeed.init_inference: its arguments, kernel injection, tensor parallelism for inference."""

from __future__ import annotations

from ..fact import Fact

_ENGINE = "deepspeed.inference.engine:InferenceEngine"
_CONFIG = "deepspeed.inference.config:DeepSpeedInferenceConfig"
_REPLACE = "deepspeed.module_inject.replace_module"
_TRANSFORMER = "deepspeed.model_implementations.transformers.ds_transformer"

FACTS = (
    Fact(
        id="what_init_inference_does",
        names=("init_inference", "InferenceEngine", "deepspeed/__init__.py:init_inference", "DeepSpeed-Inference"),
        title="deepspeed.init_inference: its three modes",
        what="It casts the model (to fp16 unless dtype is given) and then does one of three: injection_policy divides "
        "the layers of the classes that it names, replace_with_kernel_inject replaces layers of some architectures by "
        "kernels, tp_size above 1 alone is AutoTP. Without any of them no layer is divided or replaced, and ZeRO is "
        "not used.",
        remedy="Say which mode is meant; test the model without DeepSpeed first, then with tp_size only, then with "
        "kernels. For ZeRO-3 of a model that is too large: deepspeed.initialize (ZeRO-Inference).",
        beside=(
            *("fails", "slow", "lower", "garbage", "differs", "how", "oom", "memory", "loading", "tensor parallel"),
            *("kernels + wrong", "zero inference"),
        ),
        affects={"deepspeed": ">=0.8.1"},
        evidence=(f"{_ENGINE}.__init__", f"{_CONFIG}"),
    ),
    Fact(
        id="early_init_inference",
        names=("init_inference", "InferenceEngine", "deepspeed/__init__.py:init_inference"),
        title="deepspeed.init_inference before 0.8.1: kernels, or an injection_policy",
        what="Since 0.5.7 kernels are used only with replace_with_kernel_inject=True. Without it, injection_policy has "
        "to name the layers that are divided; with neither, the call fails for a model that the kernels know "
        "(0.7.4 and 0.7.5: nothing is replaced). AutoTP came with 0.8.1.",
        remedy="replace_with_kernel_inject=True; or injection_policy; or DeepSpeed 0.8.1 or later.",
        beside=("fails", "slow", "lower", "how", "tensor parallel"),
        affects={"deepspeed": "<0.8.1"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/2670",),
    ),
    Fact(
        id="kernel_injection_models",
        names=(
            *("replace_with_kernel_inject", "kernel_inject", "DeepSpeedTransformerInference"),
            *("deepspeed/module_inject/replace_module.py:replace_with_policy", "inject_kernel"),
        ),
        title="replace_with_kernel_inject: for which models, and what usually goes wrong",
        what="The kernels exist for BERT, DistilBERT, CLIP, GPT-2, GPT-Neo, GPT-J, GPT-NeoX, BLOOM, OPT, Llama, "
        "InternLM, Megatron's GPT and, in fp16, Stable Diffusion; of other classes no layer is replaced. They follow "
        "the transformers of their time: newer releases change a layer's attributes, cache and arguments, which gives "
        "errors or wrong text. Llama with grouped-query attention does not fit them.",
        remedy="replace_with_kernel_inject=False, with tensor_parallel for several GPUs: the model's own code then "
        "runs. Else a transformers of the DeepSpeed release's time, and dtype as the weights.",
        beside=("fails", "garbage", "differs", "slow", "lower", "wrong", "kernels", "oom", "how", "incomplete", "nan"),
        evidence=("deepspeed.module_inject.replace_policy:replace_policies", f"{_TRANSFORMER}"),
    ),
    Fact(
        id="replace_method_argument",
        names=("replace_method",),
        title="init_inference(replace_method=): no longer used",
        what="It has no effect: the value is accepted with a warning. Which layers are replaced follows from "
        "injection_policy, replace_with_kernel_inject and tp_size.",
        remedy="Leave it out; replace_with_kernel_inject=True for kernels, or tensor_parallel={'tp_size': N}.",
        beside=("fails", "how", "slow", "differs", "garbage"),
        affects={"deepspeed": ">=0.8.1"},
        evidence=("deepspeed.inference.config:DeepSpeedInferenceConfig.replace_method",),
    ),
    Fact(
        id="injection_policy_argument",
        names=("injection_policy", "injection_dict", "injection_policy_tuple"),
        title="init_inference(injection_policy=): what it has to name",
        what="It maps the class of the repeated block to the names of the linear layers in it whose outputs have to "
        "be added up over the ranks: those that end the attention and the MLP, each with its parent's name and a dot "
        "('SelfAttention.o'). All other linear layers of the block are divided by their outputs. A missing name gives "
        "wrong shapes or values; one that no module has is refused.",
        remedy="{T5Block: ('SelfAttention.o', 'EncDecAttention.o', 'DenseReluDense.wo')} is an example. It does not "
        "go together with replace_with_kernel_inject.",
        evidence=(f"{_ENGINE}.__init__", "https://www.deepspeed.ai/tutorials/inference-tutorial/"),
    ),
    Fact(
        id="inference_in_int8",
        names=("torch.int8", "quantization_setting", "q_int8"),
        title="init_inference(dtype=torch.int8): only with kernels, and only before 0.15.2",
        what="Since 0.15.2 it is refused. Before, the model is not cast: only layers that kernel injection replaces "
        "are quantized, and activations stay half. Without kernel injection int8 changes nothing in the weights.",
        remedy="dtype=torch.half; bitsandbytes, or ZeRO-Inference's quantized weights, without init_inference.",
        beside=(
            "kernels",
            "inference + garbage",
            "inference + slow",
            "inference + oom",
            "inference + memory",
            "inference + fails",
        ),
        evidence=(f"{_ENGINE}._convert_to_dtype", f"{_REPLACE}:GroupQuantizer"),
    ),
    Fact(
        id="inference_parallel_size",
        names=("mp_size", "tp_size", "tensor_parallel"),
        title="tensor parallelism of init_inference: what it takes",
        what="tp_size (formerly mp_size) processes have to be started by a launcher, and each loads the whole model "
        "first, to its host memory, or to its GPU, where it has to fit whole then. Every rank must get the same "
        "inputs and call the model equally often, or all wait. Without an mpu the group is always that of ranks 0 to "
        "tp_size-1: several replicas in one job do not work.",
        remedy="deepspeed --num_gpus N with tp_size N; load on the CPU, without device_map; broadcast inputs. Each "
        "layer adds two all-reduces: with a small model or slow links it is slower than one GPU.",
        beside=(
            *("kernels", "inference + hang", "inference + oom", "inference + memory", "inference + slow"),
            *("inference + lower", "inference + garbage", "inference + how", "inference + fails"),
        ),
        evidence=(f"{_ENGINE}._create_model_parallel_group",),
    ),
    Fact(
        id="inference_token_limit",
        names=(
            *("max_out_tokens", "min_out_tokens", "allocate_workspace"),
            "deepspeed/model_implementations/transformers/ds_transformer.py:allocate_workspace",
        ),
        title="init_inference(max_out_tokens=): prompt and answer together",
        what="The kernels' workspace is allocated at the first forward, for that batch size and at most "
        "max_out_tokens (1024) of prompt plus answer. A longer sequence, or a larger batch later, does not fit: an "
        "error, wrong text or an illegal memory access. generate() refuses a longer prompt without kernels, too; "
        "little free memory shortens the workspace, down to min_out_tokens.",
        remedy="max_out_tokens as long as prompt and answer, and the largest batch first. With the hybrid engine it "
        "is hybrid_engine.max_out_tokens (512).",
        beside=("fails", "garbage", "oom", "memory", "kernels", "hybrid engine", "rlhf", "how", "generation + wrong"),
        evidence=(f"{_TRANSFORMER}:DeepSpeedTransformerInference.allocate_workspace", _CONFIG),
    ),
    Fact(
        id="inference_cuda_graphs",
        names=("enable_cuda_graph", "deepspeed/inference/engine.py:_graph_replay", "_create_cuda_graph"),
        title="init_inference(enable_cuda_graph=True): fixed shapes on one GPU",
        what="The first call is recorded and replayed: all later inputs need its shapes, and each result is the same "
        "memory, overwritten by the next call. It is refused with tensor parallelism, and generate(), whose length "
        "grows, does not use it.",
        remedy="For encoders and diffusers with padded inputs; clone the results. Leave it out for text generation.",
        evidence=(f"{_ENGINE}._create_cuda_graph",),
        beside=("kernels", "inference", "generation"),
    ),
    Fact(
        id="inference_beams",
        names=("num_beams",),
        title="beam search with init_inference",
        what="generate() of an engine of init_inference refuses num_beams above 1, with or without kernels.",
        remedy="Call generate of the original model (engine.module.generate) if no kernels are injected; otherwise "
        "sampling or greedy search.",
        beside=("kernels", "inference + fails", "inference + garbage"),
        evidence=(f"{_ENGINE}._generate",),
    ),
    Fact(
        id="inference_checkpoint_argument",
        names=(
            *("save_mp_checkpoint_path", "checkpoints_json", "set_empty_params"),
            *("deepspeed/module_inject/load_checkpoint.py:load_model_with_checkpoint", "get_sd_loader_json"),
            "deepspeed/runtime/state_dict_factory.py:get_sd_loader_json",
        ),
        title="init_inference(checkpoint=): a model on the meta device and its files",
        what="With deepspeed.OnDevice(device='meta') the weights come from checkpoint=, a JSON or dict with type "
        "('BLOOM' or 'ds_model' for transformers' models), version and checkpoints, the list of files below base_dir. "
        "With kernels these are .bin or .pt files, and only some architectures' containers load so; AutoTP loads by "
        "names of modules that it knows, from safetensors, too, since 0.13.",
        remedy="Without the meta device each rank loads the model on the CPU: simpler where host memory suffices. "
        "Weights that stay on meta, or random text, mean a name that was not found.",
        evidence=("deepspeed.runtime.state_dict_factory:SDLoaderFactory", f"{_REPLACE}:replace_transformer_layer"),
    ),
    Fact(
        id="automatic_tensor_parallelism",
        names=(
            *("AutoTP", "auto_tp", "tp_parser", "deepspeed/module_inject/auto_tp.py:tp_parser"),
            *("deepspeed/module_inject/auto_tp.py:_replace", "deepspeed/module_inject/auto_tp.py:_replace_module"),
            *("get_shard_size", "deepspeed/module_inject/tp_shard.py:get_shard_size", "tp_grain_size"),
        ),
        title="AutoTP: how it decides what to divide",
        what="It looks for linear layers before a layer norm and for names such as o_proj, out_proj and down_proj: "
        "these are added up over the ranks, all other linear layers of a block are divided. Blocks must be in a "
        "ModuleList, their layers nn.Linear; names that it does not know, other fused weights than those it knows, "
        "quantized layers and renamed numbers of heads can give wrong shapes or text.",
        remedy="A DeepSpeed release after the architecture came, or injection_policy with the layers to add up. "
        "tp_size should divide the heads, and the key and value heads.",
        beside=(
            "fails",
            "garbage",
            "differs",
            "how",
            "loading",
            "oom",
            "slow",
            "quantized",
            "unbalanced",
            "inference",
        ),
        evidence=(
            "deepspeed.module_inject.auto_tp:AutoTP.tp_parser",
            "https://www.deepspeed.ai/tutorials/automatic-tensor-parallelism/",
        ),
    ),
    Fact(
        id="autotp_while_training",
        names=("AutoTP", "auto_tp", "ds_tensor_parallel_size", "deepspeed_autotp_size"),
        title="training with AutoTP",
        what="tensor_parallel.autotp_size (0.16.4 or later) divides the model; with ZeRO-3 only since 0.19.4. The "
        "ranks of a tensor-parallel group must read the same batches: the first one is compared, and an error raised. "
        "Adapters and fused or unknown layers may fail or stay whole.",
        remedy="transformers 4.50.1 and accelerate 1.6 or later with the Trainer; a sampler by the data-parallel "
        "rank; gather_16bit_weights_on_model_save for the whole weights.",
        beside=("zero-1", "zero-2", "saving", "resuming", "rlhf", "adapter", "steps", "accumulation", "micro-batches"),
        evidence=(
            "deepspeed.runtime.engine:DeepSpeedEngine._configure_tensor_parallel_states",
            "https://github.com/deepspeedai/DeepSpeed/tree/master/blogs/huggingface-tp",
        ),
    ),
    Fact(
        id="training_with_autotp",
        names=("autotp_size", "tp_model_init", "set_autotp_mode", "_apply_autotp_partitioning"),
        title="training with AutoTP: autotp_size, tp_model_init",
        what="tensor_parallel.autotp_size (0.16.4 or later) divides the model: in deepspeed.initialize since 0.18.6, "
        "before it only in deepspeed.tp_model_init, which transformers' Trainer calls. ZeRO-3 is refused before "
        "0.19.4. The ranks of a tensor-parallel group must read the same batches: only the first one is compared, and "
        "an error raised.",
        remedy="A sampler by the data-parallel rank; sizes divisible by autotp_size; save through "
        "engine.save_16bit_model or save_checkpoint, as a plain state_dict has parts of layers.",
        evidence=("deepspeed.runtime.engine:DeepSpeedEngine._configure_tensor_parallel_states",),
    ),
    Fact(
        id="inference_with_zero",
        names=("zero_inference", "ZeRO-Inference"),
        title="ZeRO-Inference: ZeRO-3 without an optimizer",
        what="The model is made under zero.Init or HfDeepSpeedConfig (kept alive) and given to deepspeed.initialize "
        "with stage 3, and offload_param where the GPUs do not hold it; init_inference's zero argument has no effect. "
        "Each layer's weights are gathered, or sent to the GPU, for each token: it is slow unless batches are large, "
        "and all ranks must generate together.",
        remedy="Large batches, pinned memory, offload to NVMe only if host memory does not suffice; synced_gpus=True "
        "in generate on several GPUs.",
        evidence=("https://www.deepspeed.ai/2022/09/09/zero-inference.html",),
    ),
    Fact(
        id="diffusers_in_inference",
        names=("StableDiffusionPipeline", "DSUNet", "DSVAE", "generic_injection"),
        title="init_inference of a diffusers pipeline",
        what="Only kernel injection in fp16 is supported, for the UNet and VAE classes of diffusers of 2022 and 2023. "
        "The whole pipeline is given, not its UNet, and with several GPUs the model is copied, not divided.",
        remedy="diffusers of the time of the DeepSpeed release; otherwise torch.compile or diffusers' own "
        "optimizations.",
        beside=("kernels", "fails + inference"),
        evidence=(f"{_REPLACE}:generic_injection",),
    ),
    Fact(
        id="layers_being_replaced",
        names=(
            *("deepspeed/inference/engine.py:_apply_injection_policy", "_apply_injection_policy"),
            *("deepspeed/module_inject/replace_module.py:replace_transformer_layer", "replace_transformer_layer"),
            *(
                "deepspeed/module_inject/replace_module.py:replace_fn",
                "deepspeed/module_inject/utils.py:policy_to_ds_container",
            ),
            *("deepspeed/module_inject/replace_module.py:replace_module", "policy_to_ds_container"),
            "deepspeed/module_inject/replace_module.py:_replace_module",
        ),
        title="init_inference replaces layers, and a layer is not as it expects",
        what="The code for an architecture reads the attributes and weights of its layers as transformers had them "
        "when it was written: a renamed or moved attribute, another class of the same name, quantized or meta "
        "weights, or sizes that the number of ranks does not divide fail here. With a checkpoint, so do names that "
        "the files do not have.",
        remedy="replace_with_kernel_inject=False (AutoTP for several GPUs), a transformers of the DeepSpeed release's "
        "time, or a newer DeepSpeed. The model loaded on the CPU in half precision, without device_map, checkpoint or "
        "quantization.",
        evidence=("deepspeed.module_inject.replace_module:replace_transformer_layer",),
    ),
    Fact(
        id="kernels_forward_pass",
        names=(
            *("deepspeed/model_implementations/transformers/ds_transformer.py:forward", "DeepSpeedSelfAttention"),
            *("deepspeed/ops/transformer/inference/ds_attention.py:forward", "selfAttention_fp", "compute_attention"),
            *("deepspeed/ops/transformer/inference/ds_attention.py:compute_attention", "SoftmaxContextOp"),
            *("deepspeed/ops/transformer/inference/op_binding/softmax_context.py:forward", "DeepSpeedMLP"),
            *(
                "deepspeed/ops/transformer/inference/op_binding/qkv_gemm.py:forward",
                "ds_qkv_gemm",
                "ds_softmax_context",
            ),
            "deepspeed/ops/transformer/inference/ds_mlp.py:forward",
        ),
        title="a kernel of init_inference fails in the forward pass",
        what="By likelihood: a transformers that passes other arguments, masks or a cache object than the kernels "
        "know; a sequence longer than max_out_tokens or a batch larger than the first one; inputs or weights of "
        "another type than dtype; head sizes or attention that they do not support. CUDA reports an illegal access at "
        "a later call.",
        remedy="replace_with_kernel_inject=False shows whether it is the kernels; use_cache and batch as at the first "
        "call, max_out_tokens for prompt and answer, CUDA_LAUNCH_BLOCKING=1 for the place.",
        evidence=("deepspeed.model_implementations.transformers.ds_transformer:DeepSpeedTransformerInference.forward",),
    ),
)
