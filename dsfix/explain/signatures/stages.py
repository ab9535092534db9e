"""What titles and sentences say of training with ZeRO's stages, and no message names."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

_ZERO3 = r"(?i:zero[-_ ]{0,2}(?:stage[-_ ]?)?3|stage[-_ ]?3)"
_ZERO = r"(?i:zero[-_ ]{0,2}(?:stage[-_ ]?)?\d|stage[-_ ]?\d|deepspeed)"
_TROUBLE = r"(?:[Ee]rror|ERROR|[Cc]rash|[Ff]ail|\b[Bb]ugs?\b|not work|n't work|报错|失败|出错)"


def _in_line(words: str, *needs: str, without: str = "") -> str:
    """Returns an expression for a line that has the words, each need before or after them, and not what is without."""
    ahead = "".join(rf"(?=[^\n]{{0,300}}{need})" for need in needs)
    if without:
        ahead += rf"(?![^\n]{{0,300}}{without})"
    return rf"(?m:^){ahead}[^\n]{{0,300}}(?:{words})"


SIGNATURES = (
    Signature(
        id="second_model_under_zero3",
        title="DPO, PPO, distillation: a second model (reference, reward, teacher) under ZeRO-3",
        what="While a ZeRO-3 config is active from_pretrained partitions every model, and only an engine gathers its "
        "weights. Most likely the second model is used without one: its weights are empty ('weight' must be 2-D, size "
        "mismatch, shape [0]). Otherwise it is prepared like the one that is trained, with an optimizer that has "
        "nothing to train (max() arg is an empty sequence), or it is a copy of a partitioned model.",
        remedy="A current TRL or framework, which prepares it; in own code from_pretrained for each model, and "
        "deepspeed.initialize with ZeRO-3 and without an optimizer for those that are not trained. With LoRA no "
        "reference model is needed (ref_model=None). Otherwise ZeRO-2. The last line of the traceback tells which "
        "it is.",
        pattern=_in_line(
            phrases(
                "DPO |dpo |PPO |ppo ",
                "deepspeed|DeepSpeed|Deepspeed|zero3|Zero3|ZeRO-3|zero stage|with zero|with deepspeed|with Deep"
                "|error|train error|training",
            )
            + "|"
            + phrases("zero3 |Zero3 |ZeRO-3 |stage 3 |stage3 ", "DPO|dpo|PPO|ppo")
            + "|"
            + phrases("DPO|dpo|PPO|ppo", "训练|阶段")
            + "|"
            + phrases("训练", "dpo|DPO|ppo|PPO")
            + r"|\(Zero3\) \+ DPO|DPO\+ZeRO|DPO \+ ZeRO|reference model|[Tt]eacher model|student\+teacher"
            + "|reward model|参考模型|教师模型",
            _ZERO3,
            _TROUBLE,
            without=r"(?:hang\b|hangs|stuck|[Tt]ime(?:d )?out|[Ss]av(?:e|ing)|[Ee]val|OOM|memory|slow|[Gg]enerat"
            r"|unsloth|卡|保存|显存)",
        ),
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/trl/pull/687",),
    ),
    Signature(
        id="frozen_parameters_fail",
        title="parameters that are frozen: where DeepSpeed fails with them",
        what="ZeRO-1, ZeRO-2 and bf16 with fp32 accumulation fail on a parameter group of the optimizer in which all "
        "are frozen. With reentrant gradient checkpointing the first layer's input requires no gradient, and the loss "
        "then has no graph. ZeRO-3 with non-reentrant checkpointing and torch 2.5 or later fails before DeepSpeed "
        "0.19.3 (CheckpointError, shape [0]), and before 0.17.4 where a weight is frozen and its bias is not. What is "
        "frozen or unfrozen after deepspeed.initialize does not count.",
        remedy="Freeze before deepspeed.initialize, and give the optimizer only [p for p in model.parameters() if "
        'p.requires_grad]; model.enable_input_require_grads(), or gradient_checkpointing_kwargs={"use_reentrant": '
        "False}; a current DeepSpeed. The last line of the traceback tells which it is.",
        pattern=_in_line(
            "frozen weights|frozen param|frozen layer|[Ff]rozen Layers|Frozen Param|frozen model|freeze layers"
            "|freezing layers|freeze some|freezing some|freeze part|freezing part|freeze the |freezing the "
            "|冻结部分|冻结参数|冻结了|冻结层",
            r"(?:[Ee]rror|[Cc]rash|[Ff]ail|\[BUG\]|not work|n't work|报错|失败)",
        ),
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4776",),
    ),
    Signature(
        id="checkpointing_of_frozen",
        title="gradient checkpointing of a model with frozen parameters (LoRA)",
        what="Reentrant: the first layer's input requires no gradient, so that the loss has no graph (element 0 of "
        "tensors does not require grad). Non-reentrant with ZeRO-3 and torch 2.5 or later: DeepSpeed before 0.19.3 has "
        "released a frozen parameter when saved and recomputed tensors are compared (CheckpointError, shape [0]).",
        remedy='model.enable_input_require_grads() or gradient_checkpointing_kwargs={"use_reentrant": False} for the '
        "first, DeepSpeed 0.19.3 or later or dsfix's patch zero3_checkpoint_recompute for the second.",
        pattern=_in_line(
            "radient checkpointing|radient Checkpointing|gradient_checkpointing|ctivation checkpoint"
            "|activation-checkpoint|CheckpointError",
            r"(?:[Ff]rozen|[Ff]reez|LoRA|lora\b|PEFT|peft\b|冻结)",
            r"(?:[Ee]rror|[Cc]rash|[Ff]ail|\[BUG\]|not work|n't work|partition|mismatch|报错|失败)",
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/47254", *pull(8148)),
    ),
    Signature(
        id="recomputation_refused",
        title="a CheckpointError: gradient checkpointing recomputed something else than the forward pass",
        what="With ZeRO-3 most likely frozen parameters (LoRA, a frozen tower), torch 2.5 or later and DeepSpeed "
        "before 0.19.3: the recomputed shape is [0]. Otherwise a cache (use_cache=True), autocast or a branch that "
        "differs between the passes.",
        remedy="DeepSpeed 0.19.3 or later, dsfix's patch zero3_checkpoint_recompute, or use_reentrant=True, which does "
        "not compare; use_cache=False.",
        pattern=r"RayTaskError\(CheckpointError\)|checkpoint\.CheckpointError(?!: \S)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="nvme_offload_fails",
        title="offload to NVMe fails",
        what="Most likely the operator async_io cannot be compiled or loaded (libaio's headers are not where the "
        "compiler looks, as in conda), offload_param's buffers are too small or too few for the largest weight, "
        "nvme_path is full, not writable or has files of an earlier job, or a number that NVMe needs is null "
        "(buffer_size, buffer_count).",
        remedy="ds_report's line async_io; apt install libaio-dev, in conda also CFLAGS=-I… and LDFLAGS=-L…; "
        '"buffer_size" above the largest weight\'s elements; an empty nvme_path per job, on a local disk; offload to '
        "the CPU shows whether it is NVMe. The message tells which it is.",
        pattern=_in_line(
            phrases(
                "nvme |NVMe |Nvme |NVME ",
                "offload|to offload|option|and optimizer|instead of",
            )
            + "|"
            + phrases("offload to |offloading to |offload on |swap to ", "nvme|NVMe|NVME")
            + "|卸载到nvme|offload到nvme",
            r"(?:[Ee]rror|[Cc]rash|[Ff]ail|\b[Bb]ugs?\b|BUG|not work|n't work|报错|失败)",
        )
        + r"|in __prefetch_nvme_param_partitions(?![\s\S]*\w(?:Error|Exception)\b)"
        r"|, in swap_out_optimizer_state(?![\s\S]*\w(?:Error|Exception)\b)"
        r"|, in _swap_in_optimizer_state(?![\s\S]*\w(?:Error|Exception)\b)",
        role=Role.FAMILY,
    ),
    Signature(
        id="schedule_and_accumulation",
        title="the learning rate's schedule ends too early or too late with accumulation or several GPUs",
        what="A schedule counts steps of the optimizer: samples / (micro-batch * accumulation * ranks). Most likely "
        'the DeepSpeed config has another gradient_accumulation_steps than the Trainer (left out is 1; not "auto"), or '
        "accelerate's prepared scheduler, which steps once for each rank, got a number of steps that is not multiplied "
        "by num_processes.",
        remedy='"gradient_accumulation_steps": "auto" (or the same number everywhere); steps * num_processes for a '
        "scheduler that accelerator.prepare gets, or a scheduler that is not prepared; compare the logged learning "
        "rate with the plan.",
        pattern=_in_line(
            "lr scheduler|LR scheduler|LR Scheduler|lr_scheduler|lr schedule|learning rate schedule|earning rate curve"
            "|学习率调度",
            r"(?:accumul|accum\b|multi-?gpu|N GPUs|num_processes|accelerator prepare)",
            r"(?:\b[Bb]ug\b|[Ww]rong|incorrect|more correctly|not take|not taking|misalign|does not|doesn't|twice"
            r"|N times|too fast|too early|more than one|[Dd]iffi?cult|不对|错误)",
        )
        + r"|scheduler stepped more than|scheduler will be stepped N times",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/diffusers/issues/3954",),
    ),
    Signature(
        id="first_step_at_full_rate",
        title="the first step is made at the optimizer's learning rate, not at the scheduler's",
        what="Through 0.15.2 WarmupLR, WarmupDecayLR and WarmupCosineLR set a rate only when they step, which is after "
        "the optimizer's first step: that one uses the optimizer's lr (Adam's default is 0.001), without warm-up.",
        remedy='DeepSpeed 0.15.3 or later; else the optimizer\'s "lr" as small as warmup_min_lr.',
        pattern=_in_line(
            "first optimization step|first step learning rate|first training step|first optimizer step|first iteration"
            "|the first step|step after optimizer",
            r"(?:[Ss]chedul|[Ww]arm-?up|lr_sched)",
            r"(?:ignored|not generated|not applied|is not used|full learning rate|is always|instead of)",
        )
        + r"|lr_scheduler takes effect after optimizer",
        affects={"deepspeed": "<0.15.3"},
        role=Role.POSSIBLE,
        evidence=pull(6597),
    ),
    Signature(
        id="gathered_changes_lost",
        title="deepspeed.zero.GatheredParameters seems to do nothing",
        what="Changes within it are kept only with modifier_rank, whose rank's values all then get; without it they "
        "are thrown away. A tensor that was taken before (weight = module.weight.data) is still the empty one, and "
        "parameters that are not in the list stay partitioned. Outside of ZeRO-3 it does nothing.",
        remedy="with deepspeed.zero.GatheredParameters([weights], modifier_rank=0): take weight.data and change it in "
        "place within, on all ranks or on rank 0 if it is random; then an assert on ds_shape. "
        "resize_token_embeddings of a current transformers gathers by itself.",
        pattern=r"GatheredParameters(?:`|\(\))?[^\n]{0,40}(?:failed to work|not work|doesn't work|does not work"
        r"|no effect|does nothing|not gather|doesn't gather|fails to)"
        r"|(?:not work|no effect|still empty|doesn't help|does not help|无效|没用)[^\n]{0,60}GatheredParameters",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="padding_index_out_of_embedding",
        title="padding_idx is not within the embedding",
        what="With ZeRO-3 most likely the embedding is partitioned, thus of size 0: it runs outside of its engine or "
        "its hooks (a second model, as for a metric, a reference or a teacher, that from_pretrained has partitioned). "
        "Otherwise the tokenizer's padding id is not smaller than the number of rows.",
        remedy="Load a model that is only used before the ZeRO-3 config is active, or in another process; prepare it; "
        "or ZeRO-2. Compare the id with the embedding.",
        pattern=r"adding_idx must be within num_embeddings|Padding_idx Error|padding_idx error",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/15244",),
    ),
    Signature(
        id="missing_weights_not_initialized",
        title="ZeRO-3: weights that the checkpoint lacks are not initialized as the model asks for",
        what="They are partitioned, thus empty, when _init_weights runs: torch's init functions do nothing to them. "
        "transformers gathers them since 2024; code of one's own must.",
        remedy="transformers 4.38 or later; with deepspeed.zero.GatheredParameters(params, modifier_rank=0): around "
        "the initialization.",
        pattern=_in_line(
            "missing parameters|missing weights|missing keys|newly initialized|new parameters|_init_weights",
            _ZERO3,
            r"(?:[Ii]nitializ|torch\.nn\.init)",
            r"(?:[Ff]ix|not init|no effect|wrong|GatheredParam|torch\.Size\(\[0?\]\)|under ZeRO)",
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/pull/28245",),
    ),
    Signature(
        id="tables_in_half_precision",
        title="ZeRO-3 with bf16 or fp16: the loss is higher than with ZeRO-2 or fp32",
        what="zero.Init makes every tensor that is created while the model is built in the config's dtype. Most likely "
        "tables that must be fp32 (rotary frequencies, position tables) are rounded to bf16, the more the longer the "
        "sequences.",
        remedy="Build the model before the ZeRO-3 config is active, or compute such tables in fp32 after it was built "
        "(inv_freq); a current transformers does so for its own models; ZeRO-2.",
        pattern=_in_line(
            "higher losses|higher loss|high loss with|high loss when|larger loss|loss is higher|losses are higher",
            _ZERO3,
            r"(?:bf16|fp16|bfloat16)",
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/2483",),
    ),
    Signature(
        id="parameters_differ_by_step",
        title="some parameters take part in some steps only",
        what="ZeRO-1 and 2 of old releases fail on a parameter that got no gradient in a step (None); in current ones "
        "it counts as zero (its momentum still moves it). If the ranks differ in it, they wait for each other, with "
        "ZeRO-3 already in the forward pass.",
        remedy="A current DeepSpeed; add 0 * sum of the outputs of what is not used to the loss, on every rank. "
        "DeepSpeed has no find_unused_parameters and needs none.",
        pattern=r"different iterations see different|different learnable parameters|different trainable parameters"
        r"|find_unused_parameters[^\n]{0,80}(?i:deepspeed|zero-?\d)"
        r"|(?i:deepspeed|zero-?\d)[^\n]{0,80}(?:find_unused_parameters|unused parameters)"
        r"|unused parameters[^\n]{0,60}(?i:deepspeed|zero-?\d)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1355",),
    ),
    Signature(
        id="muon_and_zero",
        title="Muon with ZeRO: it needs whole matrices, and ZeRO has flat partitions",
        what="ZeRO gives an optimizer one-dimensional parts of the weights, without attributes such as use_muon that a "
        "script or a framework has set. A Muon that is not made for it fails, or works as another optimizer would.",
        remedy='"optimizer": {"type": "Muon"} in the DeepSpeed config (0.17.6 and later: ZeRO-1 and 2; newer releases '
        "ZeRO-3, too), which marks the weights itself (a parameter that is added later: use_muon = True for "
        "matrices of hidden layers, else False); or no ZeRO.",
        pattern=r"\buse_muon\b|(?:Muon Optimizer|Muon optimizer"
        r"|muon optimizer)[^\n]{0,40}(?i:deepspeed|zero)"
        r"|if use muon, then tensor dim > 1"
        r"|Muon and reduce scatter cannot|Muon and all2all process group|Muon with reduce scatter does not"
        r"|All Muon parameter groups must have",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="children_used_directly",
        title="ZeRO-3: a module that uses its children's weights without calling them",
        what="torch.nn.MultiheadAttention and TransformerEncoderLayer compute with the weights of their children "
        "(out_proj, linear1) in one function. ZeRO-3 gathers a weight for the module that owns it; DeepSpeed registers "
        "others automatically, but some releases miss them, and they are empty then.",
        remedy="Another release of DeepSpeed; deepspeed.zero.register_external_parameter(layer, weight); "
        "deepspeed.utils.set_z3_leaf_modules(model, [torch.nn.TransformerEncoderLayer]); ZeRO-2.",
        pattern=r"(?:TransformerEncoder\b|TransformerEncoderLayer|MultiheadAttention)[\s\S]{0,400}"
        r"(?i:zero-?_?3|zero-?_?stage-?_?3)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1795",),
    ),
    Signature(
        id="zeropp_does_not_work",
        title="ZeRO++ fails, or trains wrongly",
        what="Known bugs: zero_quantized_weights with bf16 makes garbage of the weights, through 0.19.5; hpZ "
        "(zero_hpz_partition_size) uses old weights in the backward pass through 0.13.1, reads its copy too early "
        "through 0.13.4, does not use weights that are loaded later (0.13.2 to 0.18.2), and refuses a second model or "
        "engine. Within one node with fast connections ZeRO++ saves no time.",
        remedy="A current DeepSpeed, fp16 with zero_quantized_weights; one option at a time, zero_hpz_partition_size "
        "as the GPUs of a node; plain ZeRO-3 tells whether it is ZeRO++. `python -m dsfix check CONFIG`.",
        pattern=r"(?<!loco-)(?:"
        + phrases(
            r"ZeRO\+\+ |Zero\+\+ |zero\+\+ ",
            "is broken|features|fails|failed|crash|error|does not|doesn't|not work|is not|gives|会出现|nan|NaN|loss"
            "|init problem|leads",
        )
        + r")|ZeRO\+\+ hpZ on [^\n]{0,40}loss"
        r"|zero_quantized_(?:weights|gradients)[^\n]{0,80}(?:\bfails?\b|crash|broken|error|garbage|not work)"
        r"|zero_hpz_partition_size[^\n]{0,60}(?:loss|\bfails?\b|crash|broken|error)",
        role=Role.FAMILY,
        evidence=(*pull(8215), *pull(7707)),
    ),
    Signature(
        id="offload_clipping_of_0142",
        title="ZeRO-3 with offload in DeepSpeed 0.14.1 and 0.14.2: the step fails while gradients are clipped",
        what="Gradients are on the CPU and their scale is on the GPU (Expected all tensors to be on the same device).",
        remedy="DeepSpeed 0.14.3 or later, or 0.14.0; or dsfix's patch zero3_offload_clip_device.",
        pattern=r"(?:(?:adam_offload|optimizer offload|offload_optimizer)[^\n]{0,60}(?i:zero-?_?3)"
        r"|(?i:zero-?_?3)[^\n]{0,60}(?:adam_offload|optimizer offload|offload_optimizer))"
        r"[\s\S]{0,300}[Dd]eep[Ss]peed[^\n]{0,12}0\.14\.[12]\b",
        affects={"deepspeed": ">=0.14.1,<0.14.3"},
        role=Role.POSSIBLE,
        evidence=pull(5461),
    ),
    Signature(
        id="pinned_memory_refused",
        title="pin_memory() fails while ZeRO prepares the offload",
        what="Most likely more memory is to be pinned than CUDA, WSL 2, a container or ulimit allows, or the host's "
        'memory is full. Through 0.10.0 ZeRO-1 and 2 pin whatever "pin_memory" says.',
        remedy='"pin_memory": false in offload_optimizer (a current DeepSpeed); ulimit -l unlimited; more memory for '
        "WSL 2 or the container; fewer ranks.",
        pattern=phrases(r"pin_memory\(\) ", "raises|fails|error")
        + "|pin_memory报错|pin_memory 报错"
        + r"|temp_grad_buffer_for_cpu_offload = get_accelerator\(\)\.pin_memory\(",
        role=Role.POSSIBLE,
        evidence=pull(4131),
    ),
    Signature(
        id="zero2_differs_from_zero3",
        title="ZeRO-2 trains worse than ZeRO-3, or its loss becomes 0 or nan",
        what="Most likely overlap_comm, with which ZeRO-1 and 2 can reduce wrong gradients on GPUs: buckets are filled "
        "again too early (through 0.14.2; gradients larger than a bucket in 0.17.2 to 0.17.4) or freed while in use "
        "(0.12.0 and later). ZeRO-3 has buckets of its own.",
        remedy='"overlap_comm": false in zero_optimization; or ZeRO-3. `python -m dsfix list` shows what dsfix patches '
        "in the installed release.",
        pattern=_in_line(
            phrases(
                "zero3 |Zero3 |ZeRO3 |zero-3 |Zero-3 |ZeRO-3 ",
                "seems fine|works|is OK|is ok|is fine|is normal|has different|没问题|正常",
            )
            + "|zero2 and zero3 ha|Zero2 and Zero3 ha|ZeRO-2 and ZeRO-3 ha|zero3正常|zero3是正常|zero3没问题",
            r"(?i:zero-?2)",
            r"(?:loss|grad_norm|different|[Nn]a[Nn]\b)",
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4298", *pull(5606), *pull(7371)),
    ),
    Signature(
        id="zero_seems_off",
        title="ZeRO's stage seems to have no effect",
        what="Most likely the job is one process (started with python instead of deepspeed, torchrun or accelerate "
        "launch; a world size of 1), or the config is not passed (TrainingArguments(deepspeed=…), --deepspeed, "
        "accelerate's config file). With LoRA, and where activations are the larger part, the stages differ little.",
        remedy='Look in the log of the start for "Creating … ZeRO stage N optimizer", zero_optimization and '
        "world_size; see_memory_usage shows what the weights and the optimizer take.",
        pattern=r"(?i:zero-?_? ?[123](?!\d)|zero stage ?[123]|deepspeed)[^\n]{0,40}(?:Not Taking Effect"
        r"|not taking effect"
        r"|not take effect"
        r"|without effect"
        r"|has no effect|没有生效|不起作用|没有起作用|好像没用|没有效果)",
        role=Role.FAMILY,
    ),
)
