"""Messages of transformers, accelerate, TRL, PEFT, bitsandbytes and Lightning that jobs with DeepSpeed meet."""

from __future__ import annotations

from ..phrases import NO_ERROR_BUT_IN_SOURCE
from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="offload_needs_deepspeed_optimizer",
        title="transformers: ZeRO Offload can only work with DeepSpeed optimizers",
        what="The config offloads the optimizer and has no section optimizer, so that the Trainer makes one of its "
        "own. Old releases of transformers refuse that.",
        remedy='"optimizer": {"type": "AdamW", "params": …} in the DeepSpeed config (then DeepSpeedCPUAdam), no '
        "offload_optimizer, or a newer transformers.",
        pattern=r"ZeRO Offload can only work with DeepSpeed optimizers",
        evidence=("https://github.com/huggingface/transformers/issues/11044",),
    ),
    Signature(
        id="two_optimizers_configured",
        title="transformers: an optimizer in the arguments and one in the DeepSpeed config",
        what="Only one of them can be used: --adafactor (or optim=…) and the section optimizer exclude each other.",
        remedy="Remove one of them.",
        pattern=r"but also found `?optimizer`? configured in the DeepSpeed config",
    ),
    Signature(
        id="client_optimizer_offloaded",
        title="the optimizer is offloaded, and the config names none (harmless)",
        what="The Trainer's own AdamW runs on the CPU then. DeepSpeedCPUAdam, which a section optimizer of the config "
        "gives, is several times faster there.",
        remedy='Nothing; for speed "optimizer": {"type": "AdamW", …} in the config.',
        pattern=r"Detected ZeRO Offload and non-DeepSpeed optimizers",
        role=Role.NOTE,
    ),
    Signature(
        id="accumulation_of_config_used",
        title="accelerate uses the DeepSpeed config's gradient_accumulation_steps (harmless)",
        what="The script's and the config's numbers differ, and the config's is used. It is so in each job of the "
        "Trainer that accumulates, where it is right.",
        remedy="Nothing, if the DeepSpeed config has the number that is meant.",
        pattern=r"Gradient accumulation steps mismatch: GradientAccumulationPlugin has",
        role=Role.NOTE,
    ),
    Signature(
        id="release_of_package",
        title="a package does not have a name that is imported: its release does not fit",
        what="Most likely the installed release is older than the code that imports the name (DeepSpeedPlugin of "
        "accelerate, new models and integrations of transformers), or newer, and the name was moved or removed.",
        remedy="Upgrade transformers, accelerate, peft and TRL together (pip install -U); or install the releases that "
        "the project's requirements name. In a notebook restart the kernel.",
        pattern=r"cannot import name ['`\"]?\w+['`\"]? from ['`\"]?(?:partially initialized module ['`\"])?"
        r"(?:accelerate|transformers(?!\.deepspeed)|peft|trl|lightning|pytorch_lightning|bitsandbytes|diffusers"
        r"|vllm)\b",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/accelerate/issues/112",),
    ),
    Signature(
        id="accelerate_required",
        title="transformers needs accelerate, or a newer one",
        what="The Trainer, low_cpu_mem_usage, device_map and DeepSpeed's integration use accelerate. It is missing, "
        "too old, or was installed while this process (a notebook) was running.",
        remedy="pip install -U accelerate, with the job's python; then restart the process.",
        pattern=r"with `?PyTorch`? requires `?accelerate|requires Accelerate: `?pip install|requires `?accelerate[`>= ]"
        r"|accelerate>=\S+ is required|accelerate is required"
        r"|name 'init_empty_weights' is not defined",
        role=Role.GENERAL,
    ),
    Signature(
        id="auto_without_value",
        title='accelerate: "auto" in the DeepSpeed config has no value to be replaced by',
        what='accelerate fills in "auto" from what accelerator.prepare gets: optimizer, scheduler, dataloader, '
        "accumulation. It knows nothing for the key that the message names.",
        remedy="Write a number for that key, or remove the section; for the optimizer's and the scheduler's keys "
        "DummyOptim and DummyScheduler must be given to accelerator.prepare.",
        pattern=r"`? ?\(set to correct value\) in the DeepSpeed config file",
    ),
    Signature(
        id="best_model_of_weights_only",
        title="transformers: save_only_model and load_best_model_at_end exclude each other under DeepSpeed",
        what="The best model is loaded by the engine at the end, from a complete checkpoint, which save_only_model "
        "does not write.",
        remedy="save_only_model=False or load_best_model_at_end=False.",
        pattern=r"can't be used with `?save_only_model`? along with `?load_best_model_at_end",
    ),
    Signature(
        id="lightning_restores_optimizer_itself",
        title="Lightning restores DeepSpeed's optimizer from its own checkpoint",
        what="Lightning through 1.3 keeps the optimizer state in its own file and gives DeepSpeed's load_state_dict "
        "one dict, where ZeRO expects the list of all ranks' states.",
        remedy="Lightning 1.4 or later, whose DeepSpeed strategy saves and loads by the engine (the checkpoint is a "
        "directory); of an old checkpoint load the weights only.",
        pattern=r"restore_training_state\b[^\n]{0,200}DeepSpeed|DeepSpeed[^\n]{0,200}restore_training_state\b",
        role=Role.GENERAL,
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/8092",),
    ),
    Signature(
        id="tensors_share_memory",
        title="saving: tensors share memory, which safetensors refuses",
        what="Most likely tied weights (embedding and output layer). With ZeRO-3 also: a state dict that was not "
        "gathered, whose weights are all empty placeholders of one storage. With ZeRO-1 and 2, and fp16 or bf16: the "
        "parameters are views into one flat buffer, which a script's own save_file sees.",
        remedy="ZeRO-1 and 2: save_file({name: each.clone().contiguous() for name, each in "
        "model.state_dict().items()}, …). ZeRO-3: save_pretrained(…, state_dict=accelerator.get_state_dict(model)) or "
        "trainer.save_model, with stage3_gather_16bit_weights_on_model_save. Tied weights: save_model of safetensors, "
        "safe_serialization=False, or tie them anew (model.tie_weights()).",
        pattern=r"Some tensors share memory|weights trying to be saved contained shared tensors",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="not_copyable",
        title="a model or a tensor cannot be copied by copy.deepcopy",
        what="Its tensors are part of a graph, or it is an engine, which refers to process groups. Most likely an EMA, "
        "a reference model or a callback copies the model after deepspeed.initialize or accelerator.prepare, or "
        "between forward and step.",
        remedy="Copy the plain model before it is prepared (under ZeRO-3 load a second one with from_pretrained); "
        "detach() tensors that are kept.",
        pattern=r"Only Tensors created explicitly by the user|support the deepcopy protocol",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="not_picklable",
        title="an object cannot be pickled",
        what="Most likely something is saved, or sent to worker processes, that refers to an engine, a process group, "
        "a generator, a lock or a lambda: a client state, hyperparameters, a callback, a data set or a collate_fn.",
        remedy="Save state dicts only; functions of a module instead of lambdas; num_workers=0 tells whether the data "
        "loader is it.",
        pattern=r"[Cc]annot pickle ['`\"]?(?!torch\._C\._distributed)\w|Can't pickle (?:local object|<)"
        r"|Can't get local object|pickle local object",
        role=Role.FAMILY,
    ),
    Signature(
        id="purely_quantized",
        title="transformers: a quantized model cannot be trained by itself",
        what="Weights in 4 or 8 bits are not trained; adapters on top of them are. transformers finds none.",
        remedy="get_peft_model(model, LoraConfig(…)) before the Trainer; a current peft; or load the model "
        "unquantized.",
        pattern=r"cannot perform fine-tuning on purely quantized models",
    ),
    Signature(
        id="quantization_state_missing",
        title="bitsandbytes: a 4-bit weight has no quantization state",
        what="Its state is made when the layer is moved to the GPU. Under ZeRO-3 the weight is a partition, and has "
        "lost its state; otherwise the model was loaded on the CPU, or the releases are too old for DeepSpeed.",
        remedy="ZeRO-2 for QLoRA; for ZeRO-3 current releases of transformers, peft, accelerate and bitsandbytes, "
        "bnb_4bit_quant_storage in the model's dtype, and the model loaded after the ZeRO-3 config is active.",
        pattern=r"quantization state not initialized|assert quant_state is not None|module\.weight\.shape\[1\] == 1"
        r"|'Parameter' object has no attribute 'quant_state'|'NoneType' object has no attribute 'absmax'",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="bitsandbytes_without_cuda",
        title="bitsandbytes finds no CUDA library for this torch",
        what="Its library for torch's CUDA version is missing or cannot be loaded: an old bitsandbytes, no CUDA "
        "runtime in the linker's path, or torch for the CPU.",
        remedy="pip install -U bitsandbytes; `python -m bitsandbytes` tells what is missing; LD_LIBRARY_PATH with the "
        "CUDA runtime's directory.",
        pattern=r"CUDA Setup failed despite GPU being available|bitsandbytes was compiled without GPU support"
        r"|no attribute 'cget_managed_ptr'|libbitsandbytes_cpu\.so: undefined symbol"
        r"|no attribute 'cquantize_blockwise|no attribute 'cadam32bit_grad",
        role=Role.GENERAL,
    ),
    Signature(
        id="lora_modules_not_found",
        title="PEFT: target_modules do not exist in the model",
        what="The names differ between architectures (q_proj and v_proj, query_key_value, c_attn).",
        remedy='target_modules="all-linear", or names that print(model) shows.',
        pattern=r"Target modules? [^\n]{0,400}not found in the base model",
    ),
    Signature(
        id="lightning_one_optimizer",
        title="Lightning's DeepSpeed strategy supports one optimizer and one scheduler",
        what="An engine has one. A GAN, or a model with several optimizers, needs more.",
        remedy="One optimizer with several parameter groups; otherwise an engine per model without Lightning, or "
        "another strategy.",
        pattern=r"DeepSpeed currently only supports single optimizer|Currently only (?:one|a single) optimizer is "
        r"supported with DeepSpeed|DeepSpeed (?:strategy )?(?:does not|doesn't|only) supports? (?:multiple|a single"
        r"|one) "
        r"(?:optimizer|model)",
    ),
    Signature(
        id="lightning_without_deepspeed",
        title="Lightning does not find DeepSpeed",
        what="The strategy deepspeed needs the package in the same environment; it is missing, or cannot be imported.",
        remedy='python -c "import deepspeed" shows why; python -m pip install deepspeed with the job\'s python.',
        pattern=r"To use the `?DeepSpeed(?:Strategy|Plugin)`?, you must have",
    ),
    Signature(
        id="safetensors_of_partitions",
        title="a safetensors file cannot be read or written",
        what="Reading: most likely it is incomplete (saving or a download was interrupted, a Git LFS pointer), or an "
        "index file names weights that are not there. Writing: the disk is full, or tensors share memory.",
        remedy="The words behind SafetensorError tell which. Save or fetch it again, into an empty directory; `python "
        "zero_to_fp32.py . OUTPUT` if there is a global_step….",
        pattern=r"safetensors_rust\.SafetensorError",
        role=Role.FAMILY,
    ),
    Signature(
        id="not_json_serializable",
        title="an object cannot be written as JSON",
        what="The arguments or a config hold something that JSON does not have: a dtype, a tensor, a device, a "
        "DeepSpeed config object. Most likely a model's config or the TrainingArguments are logged or saved.",
        remedy="Strings and numbers instead; a newer transformers; report_to=none tells whether a logger is it.",
        pattern=r"Object of type (?!Tensor )\w+ is not JSON serializable",
        role=Role.FAMILY,
    ),
    Signature(
        id="tensor_not_json_serializable",
        title="a tensor is to be written as JSON",
        what="In a Trainer that logs or saves its state most likely the norm of the gradients: DeepSpeed 0.13.2 and "
        "later returns it as a tensor, and transformers of February 2024 wrote it into trainer_state.json as it is. "
        "Otherwise a metric or an argument of the script is a tensor.",
        remedy="A newer transformers, which takes item() of it, or DeepSpeed 0.13.1; in own code float(x).",
        pattern=r"Object of type Tensor is not JSON serializable",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="number_of_results",
        title="a function returns another number of results than the caller unpacks",
        what="deepspeed.initialize returns four (engine, optimizer, loader, scheduler), accelerator.prepare as many as "
        "it gets. Otherwise the caller is written for another release of the function (attention, models' outputs).",
        remedy="engine, optimizer, loader, scheduler = deepspeed.initialize(…), or [0]; the release that the project "
        "requires.",
        pattern=r"ValueError: (?:too many|not enough) values to unpack",
        role=Role.FAMILY,
    ),
    Signature(
        id="value_too_large_for_half",
        title="a constant is too large for fp16",
        what="fp16 ends at 65504; masks are often filled with -1e9, -1e10 or the minimum of float32.",
        remedy="torch.finfo(x.dtype).min instead of the constant; bf16.",
        pattern=r"cannot be converted to type at::(?:c10::)?Half without overflow|type c10::Half without overflow",
    ),
    Signature(
        id="backward_dtype",
        title="the backward pass meets a gradient of another dtype than the output it is for",
        what="Half weights and something in fp32 take part in the loss. Most likely labels or targets in fp32 (MSE, "
        "BCE and other losses of regression), or a loss, a head or an input in fp32 beside a model that the config "
        "casts to fp16 or bf16.",
        remedy="Cast targets and predictions to one dtype before the loss (labels.to(logits.dtype), or logits.float() "
        "and labels.float()); make --mixed_precision, the model's dtype and the config's fp16 or bf16 the same.",
        pattern=r"Found dtype \w+ but expected \w+",
        role=Role.POSSIBLE,
        evidence=("https://github.com/yjw1029/EmbMarker/issues/2",),
    ),
    Signature(
        id="foreach_mixed",
        title="an optimizer's fused step gets tensors of several devices or dtypes",
        what="Weights, gradients and states of a group must be alike. Most likely states of a resumed checkpoint are "
        "on the CPU or in fp32, or parameters of two dtypes (adapters) are in one group.",
        remedy="Cast the trainable parameters to one dtype before the optimizer is made; load the optimizer's states "
        "through the engine; fused=False, foreach=False.",
        pattern=r"Tensors of the same index must be on the same device"
        r"|params, grads, exp_avgs, and exp_avg_sqs must have "
        r"same dtype",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="compile_failed",
        title="torch.compile fails on the model",
        what="dynamo traces what the forward pass calls. With ZeRO-3 that includes DeepSpeed's hooks, which many "
        "releases cannot trace; the same with LoRA's, quantized and Triton layers.",
        remedy="Train without torch.compile; or a current torch and DeepSpeed, and engine.compile() (0.14.4 and "
        "later) instead of torch.compile(model). ZeRO-1 or 2 tells whether it is ZeRO-3. TORCHDYNAMO_DISABLE=1 turns "
        "it off.",
        pattern=r"torch\._dynamo\.exc\.|InternalTorchDynamoError|File \"[^\"\n]*_dynamo/convert_frame\.py"
        r"|BackendCompilerFailed"
        r"|torch\._inductor\.exc\.|TorchRuntimeError: Failed running|LoweringException"
        r"|torch\.compile(?:\(\))?`? [^\n]{0,30}(?:breaks|fails|failed|crash|error|not work"
        r"|n't work)(?! for \S+ falling back)"
        r"|(?:rror|fails|crash|bug)[^\n]{0,60} torch\.compile",
        role=Role.POSSIBLE,
        evidence=("https://github.com/pytorch/pytorch/issues/115484",),
    ),
    Signature(
        id="pop_from_empty_trace",
        title="pop from an empty deque: ZeRO-3's recorded order of modules, most likely",
        what="ZeRO-3 takes the modules of a pass from the order that it recorded. Hooks that were removed and added "
        "again (generation in TRL's PPO, GRPO, online DPO), another forward pass in between, or a pass that was "
        "interrupted make it run out.",
        remedy="Current TRL (1.5.0) or DeepSpeed (0.19.2); the same modules in every pass; or ZeRO-2.",
        pattern=r"pop from an empty deque",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/trl/issues/2304",),
    ),
    Signature(
        id="vocabulary_of_size_zero",
        title="vocab_size is 0: it was read from an embedding that ZeRO-3 has partitioned",
        what="resize_token_embeddings of transformers 4.33 and before takes the new size from the weight, whose local "
        "shape is [0] under ZeRO-3, and writes it into the config; the loss then reshapes its logits to 0 columns.",
        remedy="A newer transformers; or model.config.vocab_size = len(tokenizer) after the resize.",
        pattern=r"shape '\[-1, 0\]' is invalid for input of size|sets `?vocab_size`? to 0\b|vocab_size`? (?:is"
        r"|becomes) 0\b"
        r"|\"vocab_size\": 0\b",
        role=Role.GENERAL,
        evidence=("https://github.com/huggingface/transformers/issues/26398",),
    ),
    Signature(
        id="llamafactory_refuses",
        title="LLaMA-Factory or ms-swift: this method does not work with this kind of training",
        what="The message names the method (GaLore, APOLLO, BAdam, PiSSA, LLaMA Pro) and what it excludes or needs: "
        "layer-wise GaLore and APOLLO run on one GPU, layer-wise BAdam on several needs ZeRO-3, PiSSA under ZeRO-3 "
        "an initialisation of its own.",
        remedy="Another ZeRO stage or one GPU, as the message says; PiSSA: scripts/pissa_init.py first; otherwise "
        "LoRA or full training.",
        pattern=r"Distributed training does not support layer-wise|use scripts/pissa_init\.py"
        r"|BAdam (?:does not yet support|only supports)|ZeRO3 not supported for LLaMAPro",
    ),
    Signature(
        id="quantized_on_other_device",
        title="accelerate: a model in 8 or 4 bits is on another device than its rank's, or on several",
        what="A quantized model cannot be moved. In a distributed job each rank needs the whole of it on its own GPU; "
        "device_map='auto' spreads it (what does not fit the GPU goes to the CPU or the disk), and a fixed number "
        "puts all ranks' models on one GPU.",
        remedy="device_map={'': int(os.environ['LOCAL_RANK'])} in from_pretrained, with ZeRO-0 to 2; no device_map "
        "under ZeRO-3.",
        pattern=r"can't train a model that has been loaded in \S+ (?:or \S+ )?precision (?:on|with)",
    ),
    Signature(
        id="arguments_without_deepspeed",
        title="the arguments have nothing of DeepSpeed",
        what="Namespace: the parser has no --deepspeed, --deepspeed_config or --local_rank, which "
        "deepspeed.initialize(args=…) or the script reads. TrainingArguments: they were made without deepspeed=…, are "
        "copied, or are of a release of transformers where the name is another one.",
        remedy="parser = deepspeed.add_config_arguments(parser) and parser.add_argument('--local_rank', type=int, "
        "default=-1); or deepspeed.initialize(config=…) without args. transformers: "
        "TrainingArguments(deepspeed=CONFIG), and the release that the project requires.",
        pattern=r"'Namespace' object has no attribute '(?:deepspeed\w*|local_rank)'"
        r"|'\w*TrainingArguments' object has no attribute '(?:hf_)?deepspeed\w*'",
    ),
    Signature(
        id="adapter_resumed_strictly",
        title="an adapter's checkpoint is loaded as if it had the whole model",
        what="The checkpoint has the adapter (or the weights that are trained) only, and load_state_dict asks for all. "
        "Most likely transformers before 4.38 resumes a PEFT model under DeepSpeed: it lets the engine load strictly. "
        "Keys with base_layer: the file is of another release of PEFT.",
        remedy="transformers 4.38 or later; engine.load_checkpoint(…, load_module_strict=False); for the adapter alone "
        "PeftModel.from_pretrained(base, DIRECTORY, is_trainable=True), or set_peft_model_state_dict.",
        pattern=r"loading state_dict for Peft\w+:\s*Missing key\(s\) in state_dict",
        role=Role.GENERAL,
        evidence=("https://github.com/huggingface/peft/issues/746",),
    ),
    Signature(
        id="bitsandbytes_of_partitions",
        title="bitsandbytes: a kernel is started with an impossible size",
        what="ZeRO joins the parameters of a group to one flat tensor for each rank, and an 8-bit optimizer gets it "
        "whole. Most likely that has more than 2**31 - 1 elements (a large model on few GPUs), which bitsandbytes "
        "counts in 32 bits, or none (more ranks than parameters of the group).",
        remedy="An optimizer without bitsandbytes: adamw_torch, or DeepSpeed's own by the section optimizer of the "
        "config; its states can be offloaded instead.",
        pattern=r"invalid configuration argument at line \d+ in file \S{0,200}csrc/ops",
        role=Role.POSSIBLE,
        evidence=("https://github.com/axolotl-ai-cloud/axolotl/issues/1244",),
    ),
    Signature(
        id="reference_model_partitioned",
        title="ZeRO-3 and a reference or reward model that no engine was made for",
        what="from_pretrained partitions every model while a ZeRO-3 config is active, also the reference model of DPO "
        "and PPO. If the trainer does not make an engine for it, its weights are empty when it is called ('weight' "
        "must be 2-D); the same if the script was started without a launcher. A model prepared for training that has "
        "nothing to train fails, too.",
        remedy="A current TRL or project, which prepares it (prepare_deepspeed); accelerate launch, deepspeed or "
        "torchrun; with LoRA no reference model; precompute_ref_log_probs; or ZeRO-2.",
        pattern=r"(?:DPO|KTO|PPO|RLHF)[^\n]{0,60}reference model[^\n]{0,60}[Zz]e[Rr][Oo][-_ ]?3",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/trl/issues/669",),
    ),
    Signature(
        id="weights_missing_under_zero3",
        title="from_pretrained reports weights as MISSING under ZeRO-3",
        what="With ZeRO-3 transformers loads partitioned weights in a way of its own. Releases 5.0 to 5.5 do not find "
        "there what they rename while loading (the language model or the towers of a multimodal model, fused "
        "experts), and leave it random. Weights that the file does not have (a new head) are reported as well.",
        remedy="A newer transformers, or 4.57; ZeRO-2 meanwhile. Do not train with such a report. If ZeRO-2 reports "
        "the same names, the file lacks them.",
        pattern=r"(?:[Zz][Ee][Rr][Oo][-_ ]?3|[Ss]tage ?3)[\s\S]{0,900}(?:\| MISSING|MISSING keys|reported as MISSING)"
        r"|(?:reported as MISSING|the MISSING keys)[\s\S]{0,400}(?:[Zz][Ee][Rr][Oo][-_ ]?3)",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/huggingface/transformers/issues/45313",
            "https://github.com/huggingface/transformers/issues/45397",
        ),
    ),
    Signature(
        id="weight_conversion_failed",
        title="transformers 5: a weight of the checkpoint cannot be converted while it is loaded",
        what="It fuses and renames weights (experts, query and key) when it loads. Most likely the file is of another "
        "release's layout or incomplete; with AutoTP (tensor_parallel in the DeepSpeed config) fused weights are not "
        "supported.",
        remedy="A newer transformers; complete files; no tensor_parallel in the DeepSpeed config, or a checkpoint that "
        "this release has saved (save_pretrained without DeepSpeed).",
        pattern=r"Failed to apply weight conversion for|Weight conversions \(e\.g\., MoE expert fusion\)",
    ),
    Signature(
        id="cut_in_from_pretrained",
        title="an error while transformers loads a model; its message is not in the log",
        what="It cannot be told without the message. Seen here: with an active ZeRO-3 config device_map, "
        "low_cpu_mem_usage or quantization, which it excludes in many releases, or code that reads or loads weights "
        "while they are partitioned and empty (shape [0]); the files (incomplete, another model), the host's memory "
        "(each rank loads the model), or a release of transformers that does not know the model.",
        remedy="The last line of the traceback tells. No device_map and no quantization with ZeRO-3; ZeRO-2 tells "
        "whether it is ZeRO-3.",
        pattern=r", in (?:from_pretrained|_load_pretrained_model|_load_state_dict_into_meta_model"
        r"|_load_state_dict_into_zero3_model|set_module_tensor_to_device)\n" + NO_ERROR_BUT_IN_SOURCE,
        role=Role.FAMILY,
    ),
    Signature(
        id="cut_in_trainer_config",
        title="an error while transformers makes the DeepSpeed config final; its message is not in the log",
        what='Most likely values of the config contradict the arguments, "auto" stands where the model\'s config has '
        "no hidden_size, or the config has an optimizer without a scheduler (old transformers).",
        remedy='"auto" for what the arguments say, or the same values in both; `python -m dsfix check CONFIG`.',
        pattern=r", in (?:deepspeed_init|trainer_config_finalize|trainer_config_process)\n" + NO_ERROR_BUT_IN_SOURCE,
        role=Role.FAMILY,
    ),
    Signature(
        id="resizing_under_zero3",
        title="resizing an embedding, and what ZeRO-3 makes of its size",
        what="Under ZeRO-3 weight.shape is [0] outside of the module's own call; the size is in weight.ds_shape, or "
        "num_embeddings. resize_token_embeddings gathers the weight and makes a new one; transformers 4.33 and before, "
        "and 4.43.0 and 4.43.1, then read sizes from the partition: 0.",
        remedy="Another release of transformers (4.44 or later); or resize once without DeepSpeed, and save the model "
        "and the tokenizer; read the size within deepspeed.zero.GatheredParameters.",
        pattern=r"\bembedding_size ?= ?0(?![\d.])|\bresize_embedding\b"
        r"|resizing embeddings? (?:with|under|in|on) (?:[Zz]e[Rr][Oo]|ZERO|[Dd]eep[Ss]peed|[Ss]tage ?3)",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/transformers/pull/32192",),
    ),
    Signature(
        id="release_required",
        title="an installed package is not of a release that another one requires",
        what="The message names what is required and what was found; the found one may be too new as well as too old.",
        remedy="pip install the release that the message asks for, with the job's python (quote it: "
        "'deepspeed>=0.10,<=0.16'); or a newer release of the project that requires it.",
        pattern=r"is required for a normal functioning of this module, but found \w"
        r"|transformers/utils/versions\.py[^\n]{0,40}\bin\b(?![\s\S]*Error\b)",
    ),
    Signature(
        id="spread_model_in_ddp",
        title="the model is spread over several devices, and each rank needs it on its own",
        what="device_map (or offloading by accelerate) placed one model on several GPUs or on the CPU; in a "
        "distributed job, with DDP as with DeepSpeed, each rank has a device of its own.",
        remedy="No device_map and no low_cpu_mem_usage; to train a model that does not fit one GPU ZeRO-3, started by "
        "accelerate launch, deepspeed or torchrun with the DeepSpeed config.",
        pattern=r"device_ids and output_device arguments only work with",
        evidence=("https://github.com/huggingface/accelerate/issues/1368",),
    ),
    Signature(
        id="pydantic_warns_of_old_keys",
        title="code for pydantic 1 runs with pydantic 2",
        what="Only a warning by itself. If an error follows in deepspeed: releases before 0.11.2 are written for "
        "pydantic 1 and cannot be imported with pydantic 2.",
        remedy='DeepSpeed 0.11.2 or later, or pip install "pydantic<2".',
        pattern=r"Valid config keys have changed in V2|PydanticUserError|PydanticImportError",
        affects={"deepspeed": "<0.11.2"},
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3280",),
    ),
    Signature(
        id="dalle_helper_not_initialized",
        title="DALLE-pytorch: its DeepSpeed helper is asked for the rank before it is initialized",
        what="deepspeed_utils is a module of that project. Its functions need init_deepspeed first, which only the "
        "training scripts call: generate.py, or a script that only makes the VAE, fails. DeepSpeed itself has no part "
        "in it.",
        remedy="A newer DALLE-pytorch; or call its init_deepspeed at the start of the script, as the training "
        "scripts do.",
        pattern=r"DeepSpeed has not been initialized; please call",
    ),
)
