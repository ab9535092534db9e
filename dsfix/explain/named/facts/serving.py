"""Serving and generating: DeepSpeed-MII and FastGen, the hybrid engine."""

from __future__ import annotations

from ..fact import Fact

_V2 = "deepspeed.inference.v2"
_HYBRID = "deepspeed.runtime.hybrid_engine:DeepSpeedHybridEngine"

FACTS = (
    Fact(
        id="fastgen_requirements",
        names=("FastGen", "DeepSpeed-FastGen", "mii.pipeline", "InferenceEngineV2", "build_hf_engine", "inference_v2"),
        title="FastGen (mii.pipeline, mii.serve): what it needs",
        what="It has models of its own: OPT, Llama, Mistral, Mixtral, Falcon, Phi, Phi-3, Qwen, Qwen2 and its MoE, "
        "and few others, older releases fewer; all else, and quantized checkpoints, fails while loading. Its kernels "
        "need a GPU of compute capability 8.0 or later, the package deepspeed-kernels (Linux, x86_64), and a compiler "
        "at first use.",
        remedy="pip install -U deepspeed-mii, with the CUDA toolkit of torch's version. Models that it does not know: "
        "init_inference, or another server.",
        beside=("fails", "how", "slow", "garbage", "differs", "oom", "installing", "building", "loading", "hang"),
        evidence=(f"{_V2}.engine_factory:build_hf_engine",),
    ),
    Fact(
        id="fastgen_memory_settings",
        names=(
            *("max_ragged_batch_size", "max_tracked_sequences", "max_ragged_sequence_count", "RaggedBatchConfig"),
            *("DSStateManagerConfig", "RaggedInferenceEngineConfig", "max_context", "BlockedKVCache"),
            "deepspeed/inference/v2/ragged/kv_cache.py:__init__",
        ),
        title="FastGen: memory and limits of its batches",
        what="After the weights all free memory but 1 GB (memory_config) is taken for keys and values when the engine "
        "starts, whatever is asked later: high use is intended. max_context (8192) bounds prompt plus answer, "
        "max_ragged_batch_size (768) the tokens of one pass.",
        remedy="memory_config with mode 'allocate' and a number of blocks, or a larger reserve; tensor parallelism; "
        "no other process on the GPU.",
        evidence=(f"{_V2}.ragged.manager_configs",),
    ),
    Fact(
        id="mii_server_processes",
        names=(
            "mii.serve",
            "mii.client",
            "mii.deploy",
            "mii.mii_query_handle",
            "MIIServer",
            "_wait_until_server_is_live",
        ),
        title="DeepSpeed-MII: the server runs in processes of its own",
        what="mii.serve starts the ranks with the deepspeed launcher, on ports of their own, and the client waits "
        "until these answer. 'Server crashed' or endless waiting only says that a rank ended or still loads: its "
        "error stands above, or in the terminal of the server.",
        remedy="Try mii.pipeline under `deepspeed --num_gpus N script.py` first: it shows the error. Free ports, a "
        "free GPU and enough memory; mii.deploy is the older API, for mii before 0.1 (or mii.legacy).",
        evidence=("https://github.com/deepspeedai/DeepSpeed-MII",),
    ),
    Fact(
        id="hybrid_engine_limits",
        names=(
            *("hybrid_engine", "enable_hybrid_engine", "DeepSpeedHybridEngine", "HybridEngine"),
            *(
                "deepspeed/runtime/hybrid_engine.py:generate",
                "deepspeed/runtime/hybrid_engine.py:new_inference_container",
            ),
        ),
        title="the hybrid engine: for which models, and what usually goes wrong",
        what="It generates with the kernels of init_inference, for the same few architectures (OPT, BLOOM, GPT-J, "
        "GPT-NeoX, Llama and others), of the transformers of 2023: others fail or are not accelerated, newer "
        "transformers fail, repeat tokens or differ from the model without it. Prompt and answer together have to fit "
        "hybrid_engine.max_out_tokens (512), and no batch may be larger than the first.",
        remedy="Without it (hybrid_engine.enabled false, no --enable_hybrid_engine) the same job generates slowly but "
        "rightly. Else an older transformers, fp16, and inference_tp_size 1.",
        beside=("fails", "garbage", "differs", "slow", "oom", "how", "hang", "generation", "wrong", "memory"),
        evidence=(f"{_HYBRID}",),
    ),
    Fact(
        id="hybrid_engine_options",
        names=(
            *("inference_tp_size", "release_inference_cache", "pin_parameters", "tp_gather_partition_size"),
            "retake_inference_cache",
        ),
        title="options of the hybrid engine",
        what="pin_parameters (default) gathers the whole model for generate under ZeRO-3: fast, and each GPU holds "
        "all weights. inference_tp_size above 1 divides generation over groups of ranks, only with ZeRO-3 and pinned "
        "parameters. release_inference_cache frees the keys' and values' memory between generate and training.",
        remedy="Out of memory while generating: release_inference_cache true, pin_parameters false (slower), a "
        "smaller max_out_tokens or batch for generation.",
        evidence=(f"{_HYBRID}.generate",),
    ),
    Fact(
        id="generating_while_training",
        names=(*("generate_experience", "_generate_sequence"),),
        title="generating with a model that is under ZeRO-3",
        what="Every forward pass gathers every layer again, for each token: without a gathered copy generation is "
        "many times slower than training. All ranks have to run the same number of passes: one whose answers end "
        "earlier goes on (synced_gpus), or the others wait for ever.",
        remedy="Gather once for generation (TRL: ds3_gather_for_generation, if one GPU holds the model), or a "
        "separate engine such as vLLM; ZeRO-2 if it fits; synced_gpus=True on several GPUs.",
        beside=("slow", "hang", "oom", "zero-3", "generation + fails"),
        evidence=("https://huggingface.co/docs/transformers/deepspeed", "trl.models.utils:unwrap_model_for_generation"),
    ),
    Fact(
        id="fastgen_loads_model",
        names=(
            *(
                "deepspeed/inference/v2/engine_factory.py:build_hf_engine",
                "deepspeed/inference/v2/engine_v2.py:__init__",
            ),
            *("deepspeed/inference/v2/checkpoint/huggingface_engine.py:__init__", "HuggingFaceCheckpointEngine"),
            *(
                "deepspeed/inference/v2/checkpoint/huggingface_engine.py:parameters",
                "mii/modeling/models.py:load_model",
            ),
            *("deepspeed/inference/v2/model_implementations/layer_container_base.py:set_dependency", "async_pipeline"),
            "deepspeed/inference/v2/model_implementations/inference_policy_base.py:map_param",
        ),
        title="FastGen loads a model",
        what="It downloads or reads the files, wants a model_type that it knows, and each weight under the name that "
        "its code maps: unknown types, fine-tuned models with other names (adapters, quantization, tied embeddings), "
        "a transformers without the model, or no access to a gated model fail here.",
        remedy="The same with AutoModelForCausalLM.from_pretrained tells whether the files are it; merge adapters "
        "first; newer deepspeed and deepspeed-mii for newer models.",
        evidence=(f"{_V2}.engine_factory:build_hf_engine",),
    ),
    Fact(
        id="hybrid_engine_containers",
        names=(
            *(
                "deepspeed/runtime/hybrid_engine.py:step",
                "deepspeed/runtime/hybrid_engine.py:create_inference_containers",
            ),
            *("deepspeed/runtime/hybrid_engine.py:eval", "deepspeed/runtime/hybrid_engine.py:create_inference_module"),
            *("deepspeed/runtime/hybrid_engine.py:_zero3_forward", "deepspeed/runtime/hybrid_engine.py:__init__"),
            *("_inference_containers", "create_inference_containers"),
        ),
        title="the hybrid engine has no kernels for this model, or they do not fit it",
        what="It looks for layers of the classes that kernel injection knows. Where the model has none (another "
        "architecture, a class of its own, a wrapped model) its lists stay empty and later calls can fail (since "
        "0.19.7 such a model is left as it is); where transformers is newer the layer's attributes are missing.",
        remedy="hybrid_engine.enabled false (no --enable_hybrid_engine); or an OPT, BLOOM or Llama of the DeepSpeed "
        "release's time.",
        evidence=(f"{_HYBRID}.create_inference_containers",),
    ),
)
