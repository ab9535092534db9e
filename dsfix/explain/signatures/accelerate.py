"""What accelerate refuses together with DeepSpeed, and its launcher on several machines."""

from __future__ import annotations

from ..signature import Role, Signature

# the traceback's last line is not in the log, and it did not end in deepspeed.initialize
_NO_ERROR = r"(?![\s\S]*\w(?:Error|Exception|Interrupt)\b(?!\()|[\s\S]*deepspeed/__init__\.py)"
SIGNATURES = (
    Signature(
        id="device_placement_with_engine",
        title="accelerate: device_placement is given to prepare, which DeepSpeed does not allow",
        what="The engine places the model itself. A script that prepares with device_placement=[…] (to swap blocks "
        "between CPU and GPU, for example) is written for other kinds of training.",
        remedy="accelerator.prepare without device_placement, and without the script's option that asks for it "
        "(blocks_to_swap and the like); offload_param or offload_optimizer of DeepSpeed instead; or no DeepSpeed.",
        pattern=r"can't customize device placements",
        evidence=("https://github.com/kohya-ss/sd-scripts/issues/1591",),
    ),
    Signature(
        id="zero_section_missing",
        title="accelerate: the DeepSpeed config has no section zero_optimization",
        what="accelerate reads the stage there. Most likely the section is missing or misspelled, or the file is "
        "another one (accelerate's own YAML).",
        remedy='"zero_optimization": {"stage": N} in the DeepSpeed config; stage 0 is without ZeRO.',
        pattern=r"Please specify the ZeRO optimization config in the DeepSpeed config",
    ),
    Signature(
        id="plugin_given_again",
        title="accelerate: the DeepSpeed plugin is given twice, or is none",
        what="The first Accelerator of a process (the Trainer makes one) gets the plugins of all; a later one takes "
        "them from it. deepspeed_plugin and deepspeed_plugins are two names of one argument, for a DeepSpeedPlugin "
        "or a dict of them.",
        remedy="All plugins to the first: Accelerator(deepspeed_plugins={name: DeepSpeedPlugin(…)}), later ones "
        "Accelerator() and accelerator.state.select_deepspeed_plugin(name).",
        pattern=r"cannot pass in a `?deepspeed_plugin`? when creating a second|cannot pass in both `?deepspeed_plugins"
        r"|`?deepspeed_plugin`? must be a DeepSpeedPlugin object",
    ),
    Signature(
        id="deepspeed_too_old",
        title="the installed DeepSpeed is too old for what accelerate, transformers or Lightning do with it",
        what="The message names the release that is needed at least.",
        remedy="pip install -U deepspeed, with the job's python; or the older accelerate, transformers or Lightning "
        "that the project was written for.",
        pattern=r"DeepSpeed (?:MLU |MUSA )?version must be >= \d|requires [Dd]eep[Ss]peed ?>= ?\d"
        r"|launcher requires DeepSpeed >=|DeepSpeed>=\d[\d.]* is required",
    ),
    Signature(
        id="launch_modes_exclude",
        title="accelerate launch: two kinds of training at once",
        what="--use_deepspeed excludes --multi_gpu, --use_fsdp, --cpu and --tpu.",
        remedy="--use_deepspeed alone, with --num_processes N; or a config file with distributed_type: DEEPSPEED and "
        "none of these options.",
        pattern=r"You can only use one of `?--(?:cpu|multi_gpu)",
    ),
    Signature(
        id="accelerator_used_before",
        title="accelerate's state is used before there is an Accelerator, or is made for another set-up",
        what="A process has one state of accelerate. Most likely a tracker, a logger or PartialState was made before "
        "Accelerator(deepspeed…), or a second Accelerator or TrainingArguments asks for another precision or another "
        "kind of training (in a notebook: from an earlier cell).",
        remedy="Make the Accelerator (or TrainingArguments) first, before trackers, loggers and models, once, with all "
        "its arguments; restart the notebook's kernel; a newer release of the tracker and of accelerate.",
        pattern=r"to properly initialize your accelerator via"
        r"|AcceleratorState has already been initialized and cannot be changed",
        role=Role.GENERAL,
        evidence=("https://github.com/SwanHubX/SwanLab/issues/1014",),
    ),
    Signature(
        id="clipping_by_engine",
        title="DeepSpeed clips by the norm only, and by itself",
        what="The engine clips in its step, by the norm of all ranks' gradients. Clipping by value, and clipping by "
        "the script or by Lightning, are refused or have no effect.",
        remedy='"gradient_clipping": 1.0 in the DeepSpeed config (transformers: max_grad_norm; Lightning: '
        "gradient_clip_val with the algorithm norm), and no clipping by value.",
        pattern=r"do not support `?clip_grad_value_|DeepSpeed does not support clipping gradients by value"
        r"|DeepSpeed handles gradient clipping automatically",
    ),
    Signature(
        id="precision_needs_gpu",
        title="accelerate: this precision is not available, as no suitable GPU is visible",
        what="Most likely torch sees no GPU (a build for the CPU, the driver, CUDA_VISIBLE_DEVICES, a login node), or "
        "the GPU has no bf16.",
        remedy='python -c "import torch; print(torch.cuda.is_available(), torch.cuda.is_bf16_supported())"; '
        "`python -m dsfix doctor`; fp16 on GPUs before Ampere, --mixed_precision no on the CPU.",
        pattern=r"fp16 mixed precision requires a GPU|bf16 mixed precision requires PyTorch",
    ),
    Signature(
        id="batch_size_not_found_under_zero3",
        title="transformers: auto_find_batch_size does not work with ZeRO-3",
        what="It tries smaller batches after an out-of-memory error, with a new engine each time, which ZeRO-3 does "
        "not allow.",
        remedy="auto_find_batch_size=False, and a per_device_train_batch_size that fits; or ZeRO-2.",
        pattern=r"auto_find_batch_size`? isn't supported yet with DeepSpeed Zero-3",
    ),
    Signature(
        id="cut_in_prepare",
        title="an error in accelerator.prepare with DeepSpeed; its message is not in the log",
        what="It cannot be told without the message. Seen here: more than one model is given to it (one Accelerator "
        "has one engine: a text encoder, a reference model or a discriminator beside the model), or no data loader "
        'while the config has no batch size; otherwise "auto" where accelerate knows no value, an optimizer or a '
        "scheduler in the config and in the script, or deepspeed.initialize fails (an operator, memory).",
        remedy="One model in prepare; the others stay unprepared (ZeRO-0 to 2), or get an Accelerator and a plugin of "
        'their own; "train_micro_batch_size_per_gpu": a number; DummyOptim and DummyScheduler for what the config '
        "names.",
        pattern=r"accelerate/accelerator\.py[^\n]{0,40}\bin (?:prepare|_prepare_deepspeed)\b[^\n]*" + _NO_ERROR,
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/diffusers/issues/1815",),
    ),
    Signature(
        id="cut_in_accelerator",
        title="an error while the Accelerator is made; its message is not in the log",
        what="It cannot be told without the message. Seen here with DeepSpeed: accelerate's state exists already, "
        "without the plugin or with another precision (a tracker, PartialState, TrainingArguments or another "
        "Accelerator was made before, also by a Trainer that is no longer kept up); DeepSpeed is not installed or too "
        "old, or its config is not found or contradicts accelerate's.",
        remedy="The Accelerator first, once, with all its arguments; accelerate and TRL of releases that fit each "
        'other (TRL names its range); python -c "import deepspeed".',
        pattern=r"accelerate/accelerator\.py[^\n]{0,40}\bin __init__\b" + _NO_ERROR,
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/trl/issues/2792",),
    ),
    Signature(
        id="second_loader_not_prepared",
        title="accelerate with DeepSpeed: a data loader of a second prepare() is not prepared",
        what="Many releases of accelerate prepare data loaders only while the DeepSpeed config's "
        'train_micro_batch_size_per_gpu is "auto"; the first prepare sets it to a number.',
        remedy="All data loaders in one accelerator.prepare(…) with the model and the optimizer; a newer accelerate.",
        pattern=r"[Dd]ata ?[Ll]oaders in two accelerator\.prepare"
        r"|accelerator\.prepare\(\w*(?:loader|dl)\w*\)[^\n]*\n[^\n]*accelerator\.prepare\(\w*(?:loader|dl)\w*\)",
        role=Role.POSSIBLE,
    ),
)
