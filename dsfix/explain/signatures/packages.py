"""Versions of DeepSpeed, torch, transformers and accelerate that do not fit each other."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

_BOTH = "The line above the error names the caller."

SIGNATURES = (
    Signature(
        id="torch_six",
        title="No module named 'torch._six': a package is too old for torch 2",
        what="torch 2.0 removed torch._six. DeepSpeed before 0.8.2 imports it, and so do old releases of timm, apex "
        "and others; the last line of the traceback says which.",
        remedy="pip install --upgrade deepspeed (or the package that the traceback names); in a notebook restart the "
        "kernel.",
        pattern=r"No module named '?torch\._six",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/2863",
            "https://github.com/deepspeedai/DeepSpeed/issues/2952",
        ),
    ),
    Signature(
        id="accelerate_without_engine",
        title="accelerate is in DeepSpeed mode, but has not prepared a model with it",
        what="deepspeed_engine_wrapped and deepspeed_config exist only after accelerator.prepare(model). Most likely: "
        "accelerate and transformers (or TRL, or a copied Trainer) do not fit each other; the launch asks for "
        "DeepSpeed (accelerate's config, ACCELERATE_USE_DEEPSPEED) and the Trainer has no DeepSpeed config; the model "
        "was prepared by another Accelerator, or not at all. On saving, after training: accelerate's get_state_dict of "
        "some releases reads deepspeed_config where it is not set; the checkpoints are complete.",
        remedy="Upgrade accelerate and transformers together. Pass deepspeed=CONFIG to TrainingArguments, or launch "
        "without DeepSpeed. In a script: model, optimizer, … = accelerator.prepare(model, optimizer, …) in one call.",
        pattern=r"has no attribute ['`\"]?(?:deepspeed_engine_wrapped|deepspeed_config)\b"
        r"|the active `DeepSpeedPlugin` as none"
        r"|deepspeed_engine_wrapped\.backward\([\s\S]{0,300}'NoneType' object has no attribute 'backward'",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/OpenBMB/MiniCPM-V/issues/668",
            "https://github.com/huggingface/accelerate/issues/3784",
        ),
    ),
    Signature(
        id="optimizer_has_no_train",
        title="the optimizer has no 'train' or 'eval': accelerate is too old for transformers",
        what="accelerate 0.30 to 0.33 calls these methods of every optimizer; only those without a schedule have "
        "them. Newer transformers use them.",
        remedy="accelerate 0.34.0 or later.",
        pattern=r"'(?:DeepSpeed\w+|FP16_\w+|BF16_\w+|\w*Adam\w*|SGD|Lion\w*|Adagrad|Adafactor)' object has no "
        r"attribute "
        r"'(?:train|eval)'",
        evidence=("https://github.com/huggingface/accelerate/pull/3055",),
    ),
    Signature(
        id="accelerator_argument",
        title="transformers and accelerate do not fit each other",
        what="transformers' Trainer passes an argument that Accelerator does not have. dispatch_batches, "
        "split_batches, even_batches: accelerate 1.0 has removed them, transformers is older. use_seedable_sampler: "
        "accelerate is older than 0.26, or 1.0 and later. dataloader_config: accelerate is older than 0.28.",
        remedy="Upgrade transformers and accelerate together; or keep an old transformers with accelerate below 1.0.",
        pattern=r"Accelerator\.__init__\(\) got an unexpected keyword argument"
        r"|got an unexpected keyword argument '(?:dispatch_batches|use_seedable_sampler|dataloader_config)'",
        evidence=(
            "https://github.com/huggingface/transformers/issues/34714",
            "https://github.com/hiyouga/LlamaFactory/issues/2552",
        ),
    ),
    Signature(
        id="unexpected_keyword",
        title="unexpected keyword argument: the caller and the function are of releases that do not fit",
        what=f"The caller was written for another release of the package whose function it calls. {_BOTH} Or a key of "
        f"a "
        "config (optimizer.params, scheduler.params) is passed on to a class that does not know it.",
        remedy="Upgrade the older of the two packages; after an upgrade of transformers also accelerate, peft and "
        "TRL. A config's key: correct it, `python -m dsfix check CONFIG`.",
        pattern=r"got an unexpected keyword argument '",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="deepspeed_not_installed",
        title="DeepSpeed is not installed in this environment",
        what="The Python that runs the job is another one than pip's, or the installation failed, whose error is the "
        "cause then; transformers and accelerate require a minimum, LLaMA-Factory also a maximum.",
        remedy="python -m pip install --upgrade deepspeed, with the job's python; or the release that the message "
        'names (pip install "deepspeed<=0.16.9").',
        pattern=r"No module named '?deepspeed'?(?!\.)\b|deepspeed: command not found|DeepSpeed is not installed =>"
        r"|DeepSpeed is not available =>|name 'deepspeed' is not defined"
        r"|finding module specification for 'deepspeed"
        r"|python\d?: No module named deepspeed\.|缺少deepspeed|缺少 deepspeed"
        r"|没有安装deepspeed"
        r"|没有安装 deepspeed|找不到deepspeed|找不到 deepspeed",
        role=Role.GENERAL,
    ),
    Signature(
        id="backward_counts_parameters",
        title="'NoneType' object has no attribute 'next_functions': DeepSpeed 0.18.3 to 0.18.6, torch 2.3 or 2.4.0",
        what="These releases count the used parameters in the backward pass with a private function of torch that "
        "fails there in torch 2.3 and 2.4.0.",
        remedy="DeepSpeed 0.18.7 or later, 0.18.2 or earlier, or torch 2.4.1 or later.",
        pattern=r"'NoneType' object has no attribute 'next_functions'",
        patches=("zero_backward_with_torch_2_3",),
        evidence=pull(7841),
    ),
    Signature(
        id="triton_drivers",
        title="triton finds no GPU, or more than one kind",
        what="Triton, which DeepSpeed or another package imports, needs exactly one active driver. 0: no GPU is "
        "visible to this process (login node, container, CUDA_VISIBLE_DEVICES), or torch is a build for the CPU.",
        remedy="Run where a GPU is visible; check torch.cuda.is_available(). On a machine without a GPU uninstall "
        "triton.",
        pattern=r"\d active drivers \(\[",
    ),
    Signature(
        id="optimizer_keys_missing",
        title="KeyError: 'bias_correction': the optimizer's groups come from another optimizer",
        what="DeepSpeed's Adam reads bias_correction in each group, and torch's groups do not have it. Most likely a "
        "checkpoint is resumed that was saved with another optimizer (torch's AdamW without offload, now "
        "DeepSpeedCPUAdam), or a framework replaced the groups after the optimizer was made.",
        remedy="Resume with the config of the checkpoint, or load the weights only; upgrade accelerate and DeepSpeed; "
        "else `group.setdefault('bias_correction', True)` for each group.",
        pattern=r"KeyError: '?bias_correction",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/10286",),
    ),
    Signature(
        id="number_is_a_string",
        title="a number is a string",
        what="A comparison of a number with a string. With DeepSpeed it is most likely a learning rate, betas or eps: "
        'YAML reads 1e-5 as a string, and "auto" stays one where neither transformers nor accelerate replaces it.',
        remedy="1.0e-5 in YAML; a number in the config. `python -m dsfix check CONFIG` finds it.",
        pattern=r"not supported between instances of '(?:float|int)' and 'str'"
        r"|not supported between instances of 'str' and '(?:float|int)'|could not convert string to float: 'auto'"
        r"|invalid literal for int\(\) with base 10: 'auto'"
        r"|unsupported operand type\(s\) for [/*+-]+=?: '(?:str|float|int)' and "
        r"'(?:str|float|int)'",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="pydantic_2_with_old_release",
        title="import deepspeed fails: this release is for pydantic 1",
        what="Releases before 0.11.2 declare configs for pydantic 1. The pydantic that Python imports is 2: perhaps "
        "another one than pip shows, in another site-packages.",
        remedy="DeepSpeed 0.11.2 or later, or pip install 'pydantic<2' with the same Python.",
        pattern=r"PydanticUserError: A non-annotated attribute was detected: `enabled = True`"
        r"|'FieldInfo' object has no attribute '(?:required|field_info)'"
        r"|(?:doesn't|does not|not) work with pydantic[ >=v]*2|incompatible with pydantic[ >=v]*2",
        affects={"deepspeed": "<0.11.2"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5400",),
    ),
    Signature(
        id="accelerate_config_keys",
        title="accelerate does not know keys of its config file",
        what="They are misspelled, or of a newer accelerate; keys of a DeepSpeed config (optimizer, scheduler) do not "
        "belong into accelerate's file.",
        remedy="Remove the keys that the message lists, upgrade accelerate, or name a DeepSpeed config: "
        "deepspeed_config: {deepspeed_config_file: ds_config.json}.",
        pattern=r"The config file at \S+ had unknown keys",
        evidence=("https://github.com/zai-org/CogVideo/issues/502",),
    ),
    Signature(
        id="qwen_lora_zero3",
        title="Qwen's finetune.py refuses ZeRO-3 with LoRA on a base model",
        what="It is a check of the script, for models that are not chat models, without QLoRA.",
        remedy="ds_config_zero2.json, or the chat model.",
        pattern=r"ZeRO3 is incompatible with LoRA when finetuning on base model",
        evidence=("https://github.com/QwenLM/Qwen/issues/1104",),
    ),
    Signature(
        id="evaluation_needs_zero3",
        title="transformers: evaluation without training requires ZeRO-3",
        what="trainer.evaluate() or predict() that is called without, or again before, train() sets up DeepSpeed for "
        "inference, and only ZeRO-3 saves memory there.",
        remedy="Evaluate without the DeepSpeed config, or with ZeRO-3; during training with eval_strategy instead of "
        "calls in turn.",
        pattern=r"ZeRO inference only makes sense with ZeRO Stage 3",
        evidence=("https://github.com/yifan123/flow_grpo/issues/72",),
    ),
    Signature(
        id="cupy_without_dlpack",
        title="1-bit optimizers: CuPy has no fromDlpack, or its arrays no toDlpack",
        what="Through 0.16.4 the compressed exchange calls functions of CuPy that its newer releases have dropped.",
        remedy="DeepSpeed 0.16.5 or later; or an older CuPy.",
        pattern=r"compression/cupy\.py[\s\S]*has no attribute '(?:fromDlpack|toDlpack)'",
        affects={"deepspeed": "<0.16.5"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/7101", "the source of 0.16.4 and 0.16.5"),
    ),
    Signature(
        id="pip_conflict",
        title="pip: releases of packages do not fit each other",
        what="One package asks for a release of another that is not the one installed or wanted (most often torch's "
        "own triton, or a package that pins torch). As a warning after an installation it stops nothing; the packages "
        "that it names may fail at import.",
        remedy="Install torch first, from its own index, then the others in one command, so that pip sees all "
        "conditions; or --no-deps for a package whose pin is known to be too narrow.",
        pattern=r"which is incompatible\.|these package versions have conflicting dependencies|ResolutionImpossible"
        r"|pip's dependency resolver does not currently take into account|UnsatisfiableError",
        role=Role.POSSIBLE,
        evidence=("https://github.com/NVlabs/VILA/issues/192",),
    ),
    Signature(
        id="versions_that_fit",
        title="which releases go together with DeepSpeed",
        what="DeepSpeed is not made for one torch or CUDA: a current release runs with torch 2.x, and its operators "
        "are compiled with a CUDA toolkit of torch's major version. Old releases fail at import: through 0.14.3 with "
        "torch 2.4 or later and NumPy 2, before 0.11.2 with pydantic 2. transformers, accelerate, peft and TRL must "
        "be of one age.",
        remedy="The releases that the project's requirements name, all of them; or all current ones (pip install -U "
        "deepspeed transformers accelerate peft trl). `python -m dsfix doctor` compares torch, driver, toolkit and "
        "DeepSpeed.",
        pattern=phrases(
            "not compatible with |ncompatible with ",
            "latest transformers|the latest transformers|newer "
            "transformers|torch|pytorch|PyTorch|transformers|numpy|CUDA"
            "|accelerate|triton|python3|Python 3|python 3|the latest torch|latest torch|new torch",
        )
        + "|torch/cuda version|cuda/torch version|"
        + phrases("hich version of |hat version of ", "deepspeed|DeepSpeed|torch|CUDA|transformers|cuda")
        + "|"
        + phrases("hich |hat |egarding ", "deepspeed|DeepSpeed|Deepspeed", " version")
        + "|"
        + phrases("deepspeed|DeepSpeed|torch|transformers|cuda|CUDA|环境|依赖", "版本", "不兼容|冲突|不匹配|问题|对应")
        + "|"
        + phrases("deepspeed|DeepSpeed|Deepspeed", " compatibility issue| version conflict| version mismatch"),
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/546",),
    ),
    Signature(
        id="pydantic_without_object",
        title="pydantic is too old for DeepSpeed's config classes",
        what="Fields of DeepSpeed's configs are annotated as object, which pydantic before 1.9 does not know.",
        remedy='pip install "pydantic>=1.10,<2" for DeepSpeed before 0.11.2; a current pydantic for a later one.',
        pattern=r"no validator (?:found )?for <class[ :]'?object'?>",
        affects={"pydantic": "<1.9"},
    ),
    Signature(
        id="op_builder_of_another",
        title="a relative import fails: most likely a foreign op_builder is taken for DeepSpeed's",
        what="DeepSpeed 0.8.0 to 0.8.2 takes any package op_builder that can be imported for its own: one that another "
        "installation left in site-packages, or a directory in the working directory. Loaded under that name, its "
        "relative imports leave the package. Otherwise the script itself, or its package, was started in a way that "
        "its relative imports do not fit.",
        remedy='DeepSpeed 0.8.3 or later; or remove that op_builder (python -c "import op_builder; '
        'print(op_builder.__file__)" finds it). A script with relative imports: python -m package.module.',
        pattern=r"[Dd]eep[Ss]peed[\s\S]{0,3000}attempted relative import beyond top-level package"
        r"|attempted relative import beyond top-level package[\s\S]{0,3000}[Dd]eep[Ss]peed",
        affects={"deepspeed": ">=0.8.0,<0.8.3"},
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2937",),
    ),
)
