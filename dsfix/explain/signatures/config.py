"""Errors in DeepSpeed's configuration."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature

_CHECK = "`python -m dsfix check CONFIG` finds these and other mistakes"
# DeepSpeed's own config models; other packages have classes of pydantic, too
_MODEL = (
    r"validation errors? for (?:DeepSpeed|HybridEngine|TensorBoard|Wandb|CSV|Comet|CommsLogger|ZenFlow|TPConfig"
    r"|TPTraining|Compile|BaseQuant|QKVQuant|RaggedInferenceEngine|DSStateManager)\w*"
)

SIGNATURES = (
    Signature(
        id="removed_config_key",
        title="the DeepSpeed config has a removed key",
        what="0.19.7 rejects 6 keys, 0.19.8 rejects 14, even if they disable a feature.",
        remedy="Delete the key that the message names; `python -m dsfix check CONFIG` lists all of them.",
        pattern=r"DeepSpeedConfigError: [^\n]*has been removed|has been removed.*issues/8489",
        affects={"deepspeed": ">=0.19.7"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8489",),
    ),
    Signature(
        id="config_key_unknown",
        title="the installed DeepSpeed does not know a key of the config",
        what="The line below the number of errors names it. It is misspelled or in the wrong section, or the release "
        "does not have it: keys were added and removed, and transformers or accelerate may write keys of a newer one. "
        "DeepSpeedZeroConfig is zero_optimization: aio, fp16, bf16 and activation_checkpointing belong beside it, at "
        "the top level.",
        remedy=f"Correct or delete the key, or install a release that has it; {_CHECK}, for the installed release.",
        pattern=_MODEL
        + r"[\s\S]{0,2000}?(?:extra fields not permitted|Extra inputs are not permitted|extra_forbidden)",
    ),
    Signature(
        id="config_value_fractional",
        title="a number in the config must be an integer",
        what="Since 0.15.0 (pydantic 2) a bucket size with a fraction is rejected. accelerate before 0.31, and "
        'transformers of that time, fill in "auto" as 0.9 * hidden_size ** 2, which has one.',
        remedy='Write an integer instead of "auto" for the key that the message names (stage3_prefetch_bucket_size); '
        "or newer transformers and accelerate, or DeepSpeed 0.14.5.",
        # the name alone if the two lines come from different ranks
        pattern=_MODEL + r"[\s\S]{0,2000}?(?:int_from_float|number with a fractional part)"
        r"|(?:bucket_size|threshold|_parameters|distance)\n\s*Input should be a valid integer, "
        r"got a number with a fractional",
        affects={"deepspeed": ">=0.15.0"},
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/5252",),
    ),
    Signature(
        id="config_invalid",
        title="DeepSpeed rejects a value or a key of its config",
        what="The lines below the number of errors name the key and the reason. Most likely: a key that is misspelled "
        'or that the installed release does not have; "auto" where neither transformers nor accelerate fills it in; a '
        "number in quotes or with a fraction; a value of another kind (an injection_policy, a device).",
        remedy=f"Correct that key; {_CHECK}.",
        pattern=_MODEL,
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2602",),
    ),
    Signature(
        id="config_differs_from_arguments",
        title="the DeepSpeed config contradicts the arguments of transformers or accelerate",
        what='The same setting is in both, with different values or types (8 and "8"); the message lists them: ds is '
        "the config, hf the arguments. train_batch_size is micro-batch size * gradient_accumulation_steps * ranks; "
        "the steps of a scheduler are calculated from the data.",
        remedy='"auto" in the DeepSpeed config for each key listed, or the same values in both. '
        "`python -m dsfix check CONFIG` compares them if the arguments are given.",
        pattern=r"DeepSpeed config values that mismatch",
        evidence=(
            "https://github.com/huggingface/transformers/issues/29348",
            "https://github.com/hiyouga/LlamaFactory/issues/1116",
        ),
    ),
    Signature(
        id="accelerate_config_and_file",
        title="accelerate has a DeepSpeed config file and settings of its own",
        what="With deepspeed_config_file, accelerate refuses the settings that belong into that file (ZeRO stage, "
        "offload, precision, accumulation).",
        remedy="Keep them in one place: delete them from accelerate's config, or the file. The config's fp16 or bf16 "
        "must be that of --mixed_precision.",
        pattern=r"When using `?deepspeed_config_file`?, the following accelerate config variables will be ignored"
        r"|`--mixed_precision` arg cannot be set to",
    ),
    Signature(
        id="placeholder_instead_of_engine",
        title="accelerate's DummyOptim or DummyScheduler is used: DeepSpeed was never initialised",
        what="They stand in for the optimizer and the scheduler of DeepSpeed's config until accelerator.prepare makes "
        "the engine. Most likely it made none: the script was started by python, or by one task per host, without "
        "accelerate's or DeepSpeed's launcher, or without accelerate's DeepSpeed plugin. Otherwise accelerate is older "
        "than 0.23 beside a newer transformers, or the script uses the dummy itself. With a ZeRO-3 config weights of "
        "size 0 ('weight' must be 2-D) have the same reason: from_pretrained partitions them as soon as the config is "
        "active, and without an engine nothing gathers them.",
        remedy="accelerate launch with its DeepSpeed config, deepspeed, or torchrun --nproc_per_node N with the "
        "script's --deepspeed; ms-swift: NPROC_PER_NODE=N; LLaMA-Factory: FORCE_TORCHRUN=1. To train without "
        "DeepSpeed remove its config. Otherwise upgrade accelerate.",
        pattern=r"'Dummy(?:Optim|Scheduler)' object has no attribute",
        role=Role.GENERAL,
        evidence=("https://github.com/modelscope/ms-swift/issues/783",),
    ),
    Signature(
        id="dummy_optimizer",
        title="accelerate's DummyOptim or DummyScheduler does not match the config",
        what="They stand in for an optimizer and a scheduler of the DeepSpeed config. Most likely: the config has an "
        '"optimizer" without a "scheduler", or neither, while the script (or transformers) passes the dummy; with '
        "transformers: accelerate before 0.23 beside a newer transformers.",
        remedy='Add "optimizer" and "scheduler" to the config, or remove both; with transformers upgrade accelerate. '
        "In a script: DummyScheduler(…, lr_scheduler_callable=…), and do not use the dummy before accelerator.prepare.",
        pattern=r"You cannot create a `?Dummy(?:Optim|Scheduler)`? without specifying"
        r"|Either specify a scheduler in the config file or"
        r"|You can only specify `accelerate\.utils\.DummyScheduler`"
        r"|You cannot specify an? (?:optimizer|scheduler) in the config file and in the code at the same time",
        evidence=(
            "https://github.com/OpenGVLab/InternVL/issues/288",
            "https://github.com/huggingface/accelerate/pull/1909",
        ),
    ),
    Signature(
        id="optimizer_without_scheduler",
        title='the config has an "optimizer" but no "scheduler", which this transformers does not support',
        what="transformers with accelerate before 0.23 cannot combine an optimizer of DeepSpeed's config with its own "
        "scheduler.",
        remedy='Add a "scheduler" (WarmupLR, WarmupDecayLR with "auto" values) to the config, remove the "optimizer", '
        "or upgrade transformers and accelerate.",
        pattern=r"Found `?optimizer`? configured in the DeepSpeed config, but no `?scheduler",
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/600",),
    ),
    Signature(
        id="offload_client_optimizer",
        title="optimizer offload with an optimizer of the script",
        what="Since 0.8.3 DeepSpeed refuses an optimizer that runs slowly on the CPU. Accepted are its own "
        "DeepSpeedCPUAdam (DeepSpeedCPULion since 0.17.6), and the one that the config names.",
        remedy='Name the optimizer in the config ("optimizer": {"type": "AdamW", …}), pass '
        'deepspeed.ops.adam.DeepSpeedCPUAdam, or set "zero_force_ds_cpu_optimizer": false at the top level of '
        "DeepSpeed's config (a key of accelerate's yaml file has no effect); or no offload.",
        pattern=r"ZeRO-Offload with a client provided optimizer|<\"?zero_force_ds_cpu_optimizer"
        r"|Please either use deepspeed\.ops\.adam\.DeepSpeedCPUAdam or set an optimizer",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/2971",
            "https://github.com/OpenMOSS/MOSS/issues/272",
            "https://github.com/deepspeedai/DeepSpeed/issues/7524",
        ),
    ),
    Signature(
        id="batch_sizes_contradict",
        title="train_batch_size is not micro-batch size * accumulation steps * ranks",
        what="The message ends with the numbers; the last factor is the number of ranks. If it is 1 although there "
        "are more: the config is read before distributed is initialized (a model under zero.Init, or from_pretrained "
        "with ZeRO-3, before deepspeed.init_distributed), or the script was started without a launcher.",
        remedy="Give two of the three numbers, and leave train_batch_size out. Initialize distributed before the "
        "model is made; start with deepspeed or torchrun.",
        pattern=r"train_batch_size is not equal|Check batch related parameters|in _batch_assertion",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/6914",
            "https://github.com/deepspeedai/DeepSpeed/issues/3982",
            "https://github.com/huggingface/accelerate/issues/1324",
        ),
    ),
    Signature(
        id="batch_size_missing",
        title="the config has no batch size",
        what="DeepSpeed needs train_batch_size or train_micro_batch_size_per_gpu; accelerate takes it from a "
        "dataloader that is prepared together with the model.",
        remedy='"train_micro_batch_size_per_gpu" in the config; with accelerate pass a dataloader to the same '
        "accelerator.prepare.",
        pattern=r"Either train_batch_size or (?:train_)?micro_batch(?:_size)?_per_gpu needs to be provided"
        r"|requires you to pass at least one of training or evaluation dataloaders",
    ),
    Signature(
        id="scheduler_unknown",
        title="DeepSpeed does not know the config's scheduler",
        what="scheduler.type is neither one of DeepSpeed's nor a class of torch.optim.lr_scheduler. Names of "
        'transformers ("cosine", "linear") are not known, and WarmupCosineLR only since 0.12.3.',
        remedy="WarmupLR, WarmupDecayLR, WarmupCosineLR (refused: a newer DeepSpeed), OneCycle, LRRangeTest, or "
        "a class name of torch's; or no scheduler in the config, and lr_scheduler_type in transformers.",
        pattern=r"DeepSpeed does not recognize LR scheduler",
    ),
    Signature(
        id="untested_optimizer",
        title="ZeRO with an optimizer that DeepSpeed has not tested",
        what='Without "zero_allow_untested_optimizer" ZeRO accepts only Adam, AdamW and its own optimizers.',
        remedy='"zero_allow_untested_optimizer": true in the config.',
        pattern=r"You are using an untested ZeRO Optimizer",
    ),
    Signature(
        id="fp16_and_bf16",
        title="the config enables fp16 and bf16",
        what='Only one of them can be used. Since some sections come from arguments, "auto" may be the other one.',
        remedy="\"enabled\": false in one of them, as the model's and the Trainer's precision is.",
        pattern=r"bfloat16 and fp16 modes cannot be simultaneously enabled",
    ),
    Signature(
        id="config_not_found",
        title="DeepSpeed does not find its config, or cannot read it as JSON",
        what="The path does not exist from the job's working directory on this host, or the file is not JSON (a comma "
        "too many, a comment, a YAML file).",
        remedy="An absolute path; `python -m dsfix check CONFIG` names the line of a syntax error.",
        pattern=r"Expected a string path to an existing deepspeed config"
        r"|DeepSpeed requires --deepspeed_config to specify|path to a DeepSpeed config but the path does not exist"
        r"|must pass in a DeepSpeed config dict, or a path to a JSON|json\.loads\(config_file_or_dict\)"
        r"|b64decode\(config_file_or_dict\)",
    ),
    Signature(
        id="config_lacks_key",
        title="the DeepSpeed config lacks a key that the script or a framework reads",
        what="DeepSpeed itself has a default for the key; what reads the config here, by name, has none.",
        remedy='Add the key that the message names, with a value ("zero_optimization": {"stage": 0}, '
        '"train_micro_batch_size_per_gpu": a number).',
        pattern=r"KeyError: ['\"](?:train_micro_batch_size_per_gpu|train_batch_size|gradient_accumulation_steps"
        r"|zero_optimization|offload_optimizer|offload_param|stage3_\w+)['\"]",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="deepspeed_option_of_parser",
        title="--deepspeed means something else to this script's parser",
        what="deepspeed.add_config_arguments makes --deepspeed a switch without a value, and the file is "
        "--deepspeed_config FILE; the Trainer's --deepspeed takes the file. Both in one parser conflict.",
        remedy="Switch: --deepspeed --deepspeed_config FILE. Trainer: --deepspeed FILE, and no add_config_arguments.",
        pattern=r"argument --deepspeed: (?:expected one argument|ignored explicit argument|conflicting option string)"
        r"|conflicting option strings?: --deepspeed|conflicting option strings?: --local_rank",
    ),
    Signature(
        id="script_arguments_missing",
        title="the script is not given an argument that it requires",
        what="Most likely a line of the shell script ends without the backslash that continues it, or with a blank "
        "after it, so that the rest is not passed; or the script takes a YAML file as its first argument, and the "
        "deepspeed launcher has put --local_rank in front of it (LLaMA-Factory).",
        remedy="Look at the command that the launcher prints (spawned with command); deepspeed --no_local_rank, or "
        "torchrun or llamafactory-cli for a script with a YAML file.",
        pattern=r"error: the following arguments are required: ",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/6075",),
    ),
    Signature(
        id="where_auto_works",
        title='"auto" in the DeepSpeed config is filled in by transformers and accelerate only',
        what='DeepSpeed itself knows "auto" for none of these keys. The Trainer fills in batch sizes, accumulation, '
        "clipping, fp16 and bf16, lr, betas, eps and weight_decay of the optimizer, the scheduler's parameters, and "
        "from the model's hidden_size reduce_bucket_size, stage3_prefetch_bucket_size and "
        "stage3_param_persistence_threshold. accelerate alone fills in fewer: the optimizer's and the scheduler's "
        "only with DummyOptim and DummyScheduler. sub_group_size, stage3_max_live_parameters and the others need "
        "numbers.",
        remedy='Numbers for all other keys; `python -m dsfix check CONFIG` names each "auto" that nothing fills in.',
        pattern="(?:"
        + phrases(
            "can |could |may |should |to |keys |parts ",
            'use auto|be auto|be set to auto|set to auto|use "auto|be "auto|be set to "auto|use `auto|be `auto'
            "|support auto|supports auto",
        )
        + r")\b",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/accelerate/issues/1644",),
    ),
)
