"""Set-ups that DeepSpeed does not support, as their errors and titles name them."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="zero_init_without_stage3",
        title="zero.Init with a ZeRO stage below 3",
        what="zero.Init partitions the parameters, and only ZeRO-3 gathers them again. ZeRO-1/2 then have parameters "
        "without elements, and find none to partition.",
        remedy='"stage": 3 in the config, or make the model without zero.Init (accelerate: zero3_init_flag: false).',
        pattern=r"zero\.Init(?:\(\))? (?:does not|doesn't) work with (?:ZeRO )?[Ss]tage ?[012]\b"
        r"|`?initialize_gradient_partitioning_data_structures`? tries to access"
        r"|in initialize_gradient_partitioning_data_structures\n[\s\S]{0,400}KeyError: 0\b",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3752",),
    ),
    Signature(
        id="timer_started_twice",
        title="a timer of DeepSpeed is started twice",
        what="wall_clock_breakdown times each forward and backward pass. A forward pass that raised an error which the "
        "script caught leaves its timer running; and the replicas of torch.nn.DataParallel (several GPUs, one process) "
        "share the timers.",
        remedy='"wall_clock_breakdown": false; one process per GPU (deepspeed, torchrun, accelerate launch).',
        pattern=r"timer has already been started",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/745",),
    ),
    Signature(
        id="blocking_launches_hang",
        title="the job hangs with full_determinism, which sets CUDA_LAUNCH_BLOCKING=1",
        what="Blocking launches make collectives on several streams wait for each other; enable_full_determinism of "
        "transformers sets the variable.",
        remedy="full_determinism=False and a seed; unset CUDA_LAUNCH_BLOCKING.",
        pattern=r"hang[^\n]{0,80}(?:full_determinism|CUDA_LAUNCH_BLOCKING)"
        r"|(?:full_determinism|CUDA_LAUNCH_BLOCKING)[^\n]{0,80}hang",
        role=Role.GENERAL,
        evidence=("https://github.com/huggingface/transformers/issues/22363",),
    ),
    Signature(
        id="auto_needs_model_config",
        title='"auto" in the config needs model.config.hidden_size',
        what="transformers and accelerate calculate reduce_bucket_size, stage3_prefetch_bucket_size and "
        'stage3_param_persistence_threshold from it if they are "auto"; the model has no config, or one without it.',
        remedy='Numbers instead of "auto" for these three keys of zero_optimization; or give the model a config.',
        pattern=r"has neither `?hidden_size`? nor `?hidden_sizes`? entry"
        r"|automatically fill out the following `?auto`? entries"
        r"|hidden_size = model\.config\.hidden_size[\s\S]{0,600}object has no attribute '"
        r"|in trainer_config_finalize\n[\s\S]{0,600}object has no attribute '(?:config|hidden_size)'",
        evidence=("https://github.com/zjunlp/OntoProtein/issues/11",),
    ),
    Signature(
        id="batch_size_of_one_rank",
        title="DeepSpeed's train_batch_size is calculated for another number of ranks",
        what="Most likely the config was finished before torch.distributed was initialized, or without WORLD_SIZE in "
        "the environment: it then counts one rank.",
        remedy="Start the ranks with a launcher, and initialize torch.distributed before TrainingArguments, the "
        'DeepSpeed plugin or zero.Init; leave train_batch_size out, or "auto".',
        pattern=r"train_batch_size[` ]*(?:is )?(?:set )?(?:incorrectly|wrongly)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/accelerate/issues/2712",),
    ),
    Signature(
        id="lightning_on_cpu",
        title="Lightning's DeepSpeed strategy on the CPU",
        what="It supports GPUs only; older Lightning fails inside DeepSpeed instead of saying so.",
        remedy='accelerator="gpu"; on the CPU another strategy.',
        pattern=r"DeepSpeed internal error on CPU|DeepSpeed strategy is only supported on CUDA"
        r"|DeepSpeed only supports GPU",
        role=Role.POSSIBLE,
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/12607",),
    ),
    Signature(
        id="backward_without_engine",
        title="ZeRO-1/2: no ipg_index: a backward pass outside of engine.backward",
        what="engine.backward makes the buffers that the gradient hooks of ZeRO-1/2 fill; loss.backward() starts the "
        "hooks without them.",
        remedy="engine.backward(loss); accelerator.backward(loss); fabric.backward(loss); self.manual_backward(loss).",
        pattern=r"no attribute 'ipg_index'|`ipg_index` issue",
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/17856",),
    ),
    Signature(
        id="saved_without_gathering",
        title="ZeRO-3: the saved weights are far too small, or there are none",
        what="Most likely they were saved by torch.save or save_pretrained without gathering: each rank has its part "
        "only, and outside of its module's hooks a parameter is empty. With stage3_gather_16bit_weights_on_model_save "
        "false a Trainer leaves only global_step…, the partitions.",
        remedy="trainer.save_model or accelerator.get_state_dict(model) with "
        '"stage3_gather_16bit_weights_on_model_save": true; from a checkpoint of the engine: zero_to_fp32.py.',
        pattern=r"(?i:zero-?_?3|zero stage ?3)[^\n]{0,120}size is only \d[\d.]* ?[KkMm]"
        r"|pytorch_model\.bin[^\n]{0,60}(?:only|just|contains)[^\n]{0,30}(?:small|\d ?[KkMm])|pytorch_model\.bin只有"
        r"|(?:model\.safetensors|pytorch_model\.bin|adapter_model\.\w+)[^\n]{0,80}(?:only"
        r"|is) (?:about )?\d+(?:\.\d+)? ?[Kk]B?\b"
        r"|\d+[Kk] [^\n]{0,20}(?:model\.safetensors|pytorch_model\.bin)|(?:saved model|saved weights|saved "
        r"checkpoint|checkpoint saved|saved file)[^\n]{0,60}(?:too small|very small|only \d+(?:\.\d+)? ?[KkMm])"
        r"|checkpoint大小仅|没有保存模型|没有保存完整|保存的模型(?:太小|很小|只有)"
        r"|model is not been saved|model is not saved|model was not saved"
        r"|not save the (?:whole|full|complete|entire) model|n't save the (?:whole|full|complete|entire) model"
        r"|save mode is very small|smaller than the original|smaller than expected|save empty model|saved empty"
        r"|weights aren't fully saved|weights are not fully saved|model is not fully saved|model isn't fully saved"
        r"|saves empty |(?i:zero-?_?3) (?:Does Not Save The Whole|does not save the whole)"
        r"|(?i:deepspeed)[^\n]{0,120}saved the model[^\n]{0,120}it was only \d[\d.]* ?[KkMm]"
        r"|unwrap_model\(\w+\)\.state_dict\(\)[\s\S]{0,300}(?i:zero-?_?3)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/RupertLuo/Valley/issues/7",),
    ),
    Signature(
        id="cuda_optimizer_offloaded",
        title="an optimizer of CUDA kernels with its states on the CPU",
        what="Most likely FusedAdam of apex or DeepSpeed with offload_optimizer (cpu_offload): its kernels need GPU "
        "memory.",
        remedy="DeepSpeedCPUAdam (the config's Adam or AdamW, no optimizer of your own), or torch.optim.AdamW.",
        pattern=r"expected input to be on cuda",
        role=Role.POSSIBLE,
        evidence=("https://github.com/EleutherAI/gpt-neox/issues/478",),
    ),
)
