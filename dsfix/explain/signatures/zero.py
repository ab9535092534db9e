"""How ZeRO gathers, releases and types parameters."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="inflight_params",
        title="ZeRO-3: parameters are still being gathered at the end of a step",
        what="ZeRO-3 prefetches parameters in the order of the previous pass; if a pass takes a different path, it "
        "treats parameters that were prefetched but not used as an error.",
        remedy='DeepSpeed 0.15.3 or later; else "stage3_prefetch_bucket_size": 0, which disables prefetching.',
        patches=("zero3_inflight_params",),
    ),
    Signature(
        id="hpz_group_rank",
        title="ZeRO++ hpZ: ValueError, Group rank is not part of group",
        what="DeepSpeed 0.12 counts a group's ranks until torch raises a RuntimeError; since the end of 2023 torch "
        "raises a ValueError. No patch makes hpZ usable there: through 0.13.1 its backward pass uses stale weights.",
        remedy="DeepSpeed 0.13.2 or later, or no zero_hpz_partition_size.",
        pattern=r"get_all_ranks_from_group[\s\S]*Group rank \d+ is not part of group",
        affects={"deepspeed": "<0.13.0"},
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/4853",
            "https://github.com/deepspeedai/DeepSpeed/pull/4862",
            "https://github.com/deepspeedai/DeepSpeed/issues/4851",
        ),
    ),
    Signature(
        id="skip_init_under_zero_init",
        title="zero.Init and torch.nn.utils.skip_init: parameters are partitioned on the meta device",
        what="skip_init makes a module on the meta device first. Through 0.12.6 zero.Init partitions its parameters "
        "right then (remote model code of ChatGLM and its relatives builds each layer so).",
        remedy="DeepSpeed 0.13.0 or later; or empty_init=False, which ChatGLM's from_pretrained takes.",
        pattern=r"(?:\bskip_init\b|\.to_empty\()[\s\S]{0,2000}in _post_init_method\n[\s\S]{0,300}"
        r"Cannot copy out of meta tensor",
        affects={"deepspeed": "<0.13.0"},
        evidence=pull(4722),
    ),
    Signature(
        id="linear_of_one_dimension",
        title="ZeRO-3: the backward pass of a Linear whose input has one dimension",
        what="Under zero.Init torch.nn.functional.linear is DeepSpeed's. Through 0.19.3 its backward pass multiplies "
        "the gradient with the input as if both were matrices.",
        remedy='x[None] and [0] around the layer; "memory_efficient_linear": false in zero_optimization; or DeepSpeed '
        "0.19.4 or later.",
        pattern=r"LinearFunctionForZeroStage3Backward returned an invalid gradient at index 1",
        affects={"deepspeed": "<0.19.4"},
        evidence=pull(8189),
    ),
    Signature(
        id="fetch_trace_out_of_step",
        title="ZeRO-3: IndexError, pop from an empty deque, in its trace of modules",
        what="Hooks were removed and registered again between two passes (generation during training, as in TRL's "
        "GRPO, GKD and PPO), or a pass was interrupted: the recorded order of modules no longer matches.",
        remedy="DeepSpeed 0.19.2 or later, or TRL 1.5.0 or later.",
        pattern=r"(?:partitioned_param_coordinator|step_id_module_fetched_for\[)[\s\S]*pop from an empty deque",
        affects={"deepspeed": "<0.19.2"},
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/8043",
            "https://github.com/huggingface/trl/issues/4899",
            "https://github.com/huggingface/trl/pull/4693",
        ),
    ),
    Signature(
        id="hook_registration_renamed",
        title="no attribute '_register_hooks_recursively': TRL is too old for this DeepSpeed",
        what="DeepSpeed 0.16.4 renamed a private method that TRL through 0.15.2, and code copied from it, calls after "
        'generation. Restoring the old name does not help: the next forward pass fails with "pop from an empty deque".',
        remedy="TRL 0.16.0 or later; in your own code: optimizer_offload.setup_zero_stage3_hooks().",
        pattern=r"has no attribute '_register_hooks_recursively'",
        affects={"deepspeed": ">=0.16.4"},
        evidence=(
            "https://github.com/huggingface/trl/issues/2962",
            "https://github.com/huggingface/trl/pull/2963",
        ),
    ),
    Signature(
        id="gathered_dtypes_differ",
        title="an all-gather of ZeRO has buffers of two dtypes",
        what="Most likely the precision in the config does not fit the model: fp16 and bf16 not set as the model was "
        'loaded, or a misspelled section ("bf_16"), which DeepSpeed ignores. Or weights of several dtypes with '
        "ZeRO-3: a quantized model (QLoRA), and in 0.19.2 a model in bf16 with adapters in fp32, peft's default.",
        remedy='Set "bf16" or "fp16" as the model is loaded: `python -m dsfix check CONFIG` finds misspelled keys. '
        "QLoRA: bnb_4bit_quant_storage in the dtype of the model. 0.19.2: another release, or "
        "autocast_adapter_dtype=False in get_peft_model.",
        pattern=r"output tensor must have the same type as input tensor",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/8072",
            "https://github.com/deepspeedai/DeepSpeed/pull/8073",
            "https://github.com/huggingface/trl/issues/6089",
        ),
    ),
    Signature(
        id="trainable_dtypes_differ",
        title="ZeRO-3: AssertionError in defragment: trainable parameters of several dtypes",
        what="ZeRO-3 copies the trainable parameters into one buffer, which requires one dtype and one device.",
        remedy="Do not mix dtypes of trainable parameters: for adapters set autocast_adapter_dtype=False in "
        "get_peft_model, or cast all of them to one dtype before deepspeed.initialize.",
        pattern=r"in defragment[\s\S]*AssertionError",
        evidence=(
            "https://github.com/huggingface/trl/issues/6089",
            "https://github.com/hiyouga/LlamaFactory/issues/3634",
        ),
    ),
    Signature(
        id="frozen_group",
        title="ZeRO-1/2: a parameter group of the optimizer has nothing to train",
        what="ZeRO-1 and ZeRO-2, and bf16 with fp32 accumulation, take only the parameters of each group that require "
        "a gradient, and fail on a group in which all are frozen (a frozen backbone with a rate of its own).",
        remedy="Leave groups without trainable parameters out: [g for g in groups if any(p.requires_grad for p in "
        "g['params'])]. ZeRO-3 ignores them.",
        pattern=r"(?:stage_1_and_2|bf16_optimizer)\.py[^\n]*, in _{0,2}flatten_dense_tensors_aligned"
        r"[\s\S]*torch\.cat\(\): expected a non-empty list of Tensors"
        r"|param_dtype = self\.bit16_groups\[i\]\[0\]\.dtype[\s\S]*IndexError: list index out of range",
        affects={"deepspeed": ">=0.12.0"},
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/4055",
            "https://github.com/deepspeedai/DeepSpeed/issues/4176",
        ),
    ),
    Signature(
        id="cpu_split_view",
        title="ZeRO-1/2 on CPU ranks: a view of the gathered buffer is modified in place",
        what='On ranks without an accelerator the step fails with torch\'s "Output 0 of Split… is a view". 0.12.4 to '
        "0.12.6 and 0.18.7 to 0.18.9; not on GPUs, and not with a single rank.",
        remedy="DeepSpeed 0.13.0 to 0.18.6, or 0.19.0 or later.",
        pattern=r"deepspeed/runtime[\s\S]*Output 0 of Split",
        affects={"deepspeed": ">=0.12.4,!=0.13.*,!=0.14.*,!=0.15.*,!=0.16.*,!=0.17.*,<0.19.0"},
        patches=("cpu_zero12_split_view",),
        evidence=pull(7948),
    ),
    Signature(
        id="fragment_without_elements",
        title="ZeRO-1/2: a parameter has no elements, or none in this rank's partition",
        what="DeepSpeed maps each parameter to its part of the fp32 weights. Most likely the model has a parameter "
        "without elements (a vocabulary of size 0, an empty buffer as parameter).",
        remedy="Look for a parameter with numel() == 0 and remove it (or correct the size in the script); dsfix's "
        "patch zero12_empty_parameter lets it be.",
        pattern=r"assert fragment_start < fragment_end",
        role=Role.POSSIBLE,
        evidence=("https://github.com/BlinkDL/RWKV-LM/issues/149",),
    ),
    Signature(
        id="clipping_failed",
        title="ZeRO-3: an error while the gradients are unscaled and clipped, whose message is not in the log",
        what="With offload to the CPU in 0.14.1 and 0.14.2 most likely DeepSpeed's own error: the gradients are on the "
        "CPU and their scale is on the GPU (Expected all tensors to be on the same device).",
        remedy="The last line of the traceback tells; DeepSpeed 0.14.3 or later, or dsfix's patch "
        "zero3_offload_clip_device.",
        pattern=r"stage3\.py\", line \d+, in unscale_and_clip_grads(?![\s\S]*\w(?:Error|Exception)\b)",
        role=Role.FAMILY,
        evidence=pull(5461),
    ),
    Signature(
        id="zero_init_not_in_effect",
        title="ZeRO-3: the model is not made under zero.Init, and is partitioned only afterwards",
        what="from_pretrained partitions while it loads only if transformers' HfDeepSpeedConfig is alive, which "
        "TrainingArguments or the Accelerator make from a ZeRO-3 config, in the same process and before it. Older "
        "transformers also loads quantized models, and some classes of their own, without it.",
        remedy="TrainingArguments(deepspeed=…) or Accelerator() first and kept in a variable, then from_pretrained; "
        "transformers.integrations.is_deepspeed_zero3_enabled() tells; no quantization_config for partitioned loading.",
        pattern=r"is_zero_init_model[^\n]{0,80}(?:False|false)|zero3_init_flag[^\n]{0,200}"
        r"(?:not work|no effect|is judged to False|then all parameters load|still load)",
        role=Role.POSSIBLE,
    ),
)
