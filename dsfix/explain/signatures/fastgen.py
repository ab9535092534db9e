"""Inference v2: FastGen, DeepSpeed-MII."""

from __future__ import annotations

from ..signature import Role, Signature, pull

_ENGINE = r"inference/v2/checkpoint/huggingface_engine\.py"


SIGNATURES = (
    Signature(
        id="fastgen_remote_code",
        title="FastGen: a model with code of its own needs trust_remote_code, which is not passed on",
        what="build_hf_engine reads the model's config without arguments for transformers; since 0.15.0 only "
        "HuggingFaceCheckpointEngine itself takes them.",
        remedy="A model type that transformers knows without code of the model. In a script of your own, DeepSpeed "
        "0.15.0 or later: HuggingFaceCheckpointEngine(path, trust_remote_code=True) and the model's policy.",
        pattern=rf"{_ENGINE}[\s\S]*trust_remote_code=True",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(6378),
    ),
    Signature(
        id="fastgen_generation_config",
        title="FastGen: a model without generation_config.json is not loaded",
        what="Through 0.12.6 the file is read, needed or not.",
        remedy='DeepSpeed 0.13.0 or later; or a file generation_config.json with {"max_length": 2048} in the '
        "model's directory.",
        pattern=rf"{_ENGINE}[\s\S]*generation_config\.json",
        affects={"deepspeed": "<0.13.0"},
        evidence=pull(4938),
    ),
    Signature(
        id="fastgen_q_ratio",
        title="FastGen: Unsupported q_ratio",
        what="The kernels exist for some ratios of query heads to key heads; 6 and 7 (Qwen 2) since 0.15.0.",
        remedy="6 and 7: DeepSpeed 0.15.0 or later. Others: another inference engine.",
        pattern=r"Unsupported q_ratio: \d+",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(6028),
    ),
    Signature(
        id="fastgen_unembed_dtype",
        title="FastGen of a model with tied embeddings: 'UnembedParameter' object has no attribute 'dtype'",
        what="Through 0.17.1 a parameter that is not loaded by itself does not know its type.",
        remedy="DeepSpeed 0.17.2 or later.",
        pattern=r"'UnembedParameter' object has no attribute 'dtype'",
        affects={"deepspeed": "<0.17.2"},
        evidence=pull(7378),
    ),
    Signature(
        id="fastgen_opt_names",
        title="FastGen of OPT: Could not find a mapping for dependency",
        what="Through 0.12.3 the names of some of OPT's sizes are not known.",
        remedy="DeepSpeed 0.12.4 or later; OPT-350m is not supported.",
        pattern=r"Could not find a mapping for dependency \"(?:model\.)?decoder\.",
        affects={"deepspeed": "<0.12.4"},
        evidence=pull(4694),
    ),
    Signature(
        id="fastgen_model_not_known",
        title="FastGen does not know this model",
        what="build_hf_engine takes opt (not opt-350m), llama, mistral, mixtral, falcon, phi, phi3, qwen, qwen2 and "
        "qwen2_moe, the later ones in later releases; mistral needs transformers 4.34, mixtral 4.36.1.",
        remedy="A current DeepSpeed and transformers; otherwise deepspeed.init_inference, or another inference engine.",
        pattern=r"ValueError: Unsupported model type (?!for\b)\w+|Unknown policy \S+ for model|Detected OPT-350m model"
        r"|AssertionError: Mistral requires transformers",
    ),
    Signature(
        id="fastgen_checkpoint_names",
        title="FastGen: the checkpoint's weights are not the ones that the model's code expects",
        what="Each weight is assigned by its name. Most likely a variant with other layers (biases, tied or quantized "
        "weights, an adapter), or files that are incomplete.",
        remedy="The unquantized, merged checkpoint of the architecture; deepspeed.init_inference or another inference "
        "engine for variants.",
        pattern=r"not fully initialized after checkpoint load|Cannot find container for \S+, please double check"
        r"|Check that it is included in the ``MAPPING_PARAMS``",
        role=Role.GENERAL,
    ),
    Signature(
        id="fastgen_sharding",
        title="FastGen: the heads cannot be shared out over the ranks",
        what="Query heads and key heads must be evenly distributable over tensor_parallel ranks.",
        remedy="A tensor_parallel that divides the number of key heads, or is a multiple of it that divides the query "
        "heads.",
        pattern=r"There must be at least as many (?:attention|query) heads as there are shards"
        r"|Currently do not support uneven partitioning of KV heads|The KV heads must be evenly distributed across"
        r"|Currently do not support distributing KV heads|must be able to (?:distribute the groups evenly|evenly "
        r"distribute them)|A shared KV head must always partition|Must be an even ratio between query and key/value",
    ),
    Signature(
        id="fastgen_cache_full",
        title="FastGen, MII: the memory for keys and values is not enough for the requests",
        what="What the weights leave of the GPU's memory is divided into blocks of keys and values. With too few for "
        "the prompts and the new tokens of the requests that run together, requests are put back and computed again "
        "(Deadlock detected), or the engine refuses.",
        remedy="Fewer requests at once, a lower max_length and max_new_tokens; more ranks (tensor_parallel), or a "
        "smaller model. The assertion about clearing the KV cache: a newer MII.",
        pattern=r"Deadlock detected\. Resetting KV cache|no request consumes KV cache"
        r"|Insufficient memory to allocate KV-caches|Not enough free blocks in the KV-cache"
        r"|Blocked KV-cache must have at least 1 block|Ragged batch is full due to"
        r"|since the metadata buffers are full",
    ),
    Signature(
        id="fastgen_old_gpu",
        title="FastGen's attention needs a GPU of compute capability 8.0",
        what="Its kernels are for Ampere and later (A100, A10, RTX 30…); V100 and T4 are older.",
        remedy="Such a GPU; otherwise deepspeed.init_inference (AutoTP), or another inference engine.",
        pattern=r"Blocked attention requires CUDA compute capability|quantization is only supported on Ampere",
    ),
    Signature(
        id="mii_model_list",
        title="MII: the model is not in the list of a task's models",
        what="The old MII (before 0.1, mii.deploy) takes only models that it lists, and asks the Hugging Face hub for "
        "most of the list: an old huggingface_hub or diffusers, or no access to the hub, leaves a short list.",
        remedy="pip install -U huggingface_hub diffusers transformers, and access to the hub; or a current MII "
        "(mii.pipeline, mii.serve), which takes a name or a path of the supported architectures.",
        pattern=r"(?:AssertionError: )?(?:text-generation|text-to-image|text-classification|question-answering"
        r"|fill-mask|token-classification|conversational) only supports \[",
        evidence=("https://github.com/deepspeedai/DeepSpeed-MII/issues/123",),
    ),
    Signature(
        id="mii_servers",
        title="MII: how its server processes are started",
        what="mii.serve (mii.deploy) starts processes of its own, with the deepspeed launcher: the script itself runs "
        "once, with python; started by deepspeed, every rank starts servers, on the same ports. mii.pipeline runs in "
        'the script\'s own processes, and needs deepspeed --num_gpus N for N ranks. "waiting for server to start" is '
        "shown while the model loads, and for ever if a rank of the server waits for another one.",
        remedy="mii.serve(MODEL, tensor_parallel=N) and python script.py; or mii.pipeline and deepspeed --num_gpus N "
        "script.py. nvidia-smi and free -g show whether it still loads; the server's own output is above.",
        pattern=r"waiting for server to start|_launch_server_process\] \w+ server launch|_launch_server_process\] "
        r"msg_server launch|non-persistent pipeline|[Ss]erve [Ff]ails while [Pp]ipeline",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed-MII/issues/266",),
    ),
)
