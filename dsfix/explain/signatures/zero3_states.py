"""ZeRO-3: whether a parameter is gathered, and whether all ranks gather the same ones."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="released_while_in_use",
        title="ZeRO-3: a parameter is released that a module still uses",
        what="active_sub_modules names modules whose forward or backward pass has begun and not ended for the hooks. "
        "Most likely hooks were removed and added again around generation (TRL's unwrap_model_for_generation before "
        "May 2024), or a forward pass was left by an exception or by early exit.",
        remedy="Upgrade trl; let each forward pass end before the engine's hooks are removed, parameters are gathered "
        "(GatheredParameters) or the model is saved.",
        pattern=r"AssertionError: \{'id': \d+, 'status': '(?:AVAILABLE|INFLIGHT)'[^\n]{0,400}"
        r"'active_sub_modules': [{\[]\d|assert not param\.ds_active_sub_modules",
        role=Role.GENERAL,
        evidence=("https://github.com/huggingface/trl/pull/1617",),
    ),
    Signature(
        id="parameter_not_gathered",
        title="ZeRO-3: a parameter is not gathered when its module runs",
        what="ZeRO-3 gathers a module's parameters in hooks and prefetches in the order of the previous pass. "
        "'status': 'INFLIGHT': a pass took another path or was interrupted (generation, evaluation between training "
        "steps, MoE, a branch that depends on the data). 'NOT_AVAILABLE' with 'ds_numel': 0: the parameter has no "
        "elements. 'NOT_AVAILABLE' otherwise: most likely an error in an earlier pass was caught, or hooks were "
        "removed. Either of them in a backward pass, now and then: through 0.18.5 threads of the backward pass race "
        "for a leaf module that returns several tensors, such as a MoE block with its router's logits.",
        remedy='INFLIGHT: a current DeepSpeed (0.15.3 or later), "stage3_prefetch_bucket_size": 0, for MoE '
        "deepspeed.utils.set_z3_leaf_modules. 'ds_numel': 0: dsfix's patch zero3_empty_parameter (through 0.18.5 "
        "zero3_empty_parameter_before_0186), or remove the parameter. A leaf module: 0.18.6 or later, or let it return "
        "one tensor. Otherwise ZeRO-2, if the model fits.",
        pattern=r"ZeroParamStatus\.AVAILABLE|\{'id': \d+, 'status': '(?:INFLIGHT|NOT_AVAILABLE)'|\} already in registry"
        r"|ds_summary\(\)\} already in|expected param .{0,400} to be (?:inflight|available)"
        r"|Cannot partition a param in flight|inflight param",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/4194",
            "https://github.com/deepspeedai/DeepSpeed/issues/3156",
            "https://github.com/deepspeedai/DeepSpeed/pull/3884",
            "https://github.com/deepspeedai/DeepSpeed/issues/7824",
        ),
    ),
    Signature(
        id="other_modules_than_recorded",
        title="ZeRO-3: a pass runs other modules than the pass that was recorded",
        what="ZeRO-3 records the order of the modules and fetches parameters along it. Most likely a pass takes "
        "another path (generation, evaluation between training steps, MoE, skipped layers, a branch that depends on "
        "the data), or an error in a pass was caught and training went on.",
        remedy="A current DeepSpeed; the same modules in every pass; for the part that varies "
        "deepspeed.utils.set_z3_leaf_modules (since 0.13.0). Otherwise ZeRO-2, if the model fits.",
        pattern=r"tracing error at step |attempted to record trace when status|parameter fetch queue to be",
        role=Role.GENERAL,
    ),
    Signature(
        id="ranks_diverge",
        title="the ranks run different modules, or reduce different gradients",
        what="Every rank must run the same modules in the same order: ZeRO-3 gathers parameters and reduces gradients "
        "in collectives. Most likely: MoE, where an expert gets tokens on some ranks only; images or other inputs in "
        "the batches of some ranks only, or another branch that depends on the data; different numbers of batches, or "
        "of generated tokens.",
        remedy="MoE: deepspeed.utils.set_z3_leaf_modules(model, [the class of the MoE block]), since 0.13.0. "
        "Branches: run them on every rank, with a dummy input multiplied by 0. Generation: synced_gpus=True. Or "
        "ZeRO-2.",
        pattern=r"disagreement between rank\d+ and rank|isagreement on list (?:length|contents)"
        r"|Detected mismatch between collectives on ranks",
        role=Role.GENERAL,
        evidence=(
            "https://github.com/hiyouga/LlamaFactory/issues/10224",
            "https://github.com/hiyouga/LlamaFactory/issues/4428",
            "https://github.com/deepspeedai/DeepSpeed/pull/5008",
        ),
    ),
    Signature(
        id="several_dtypes_gathered",
        title="ZeRO-3: parameters of several dtypes in one buffer",
        what="ZeRO-3 gathers and copies parameters together and requires one dtype (or one device) for them. Most "
        "likely: adapters in fp32 on a model in bf16, a quantized model (QLoRA), or modules that were kept in fp32.",
        remedy="Through 0.12.2: a newer DeepSpeed. Cast all trainable parameters to one dtype before "
        "deepspeed.initialize; for adapters autocast_adapter_dtype=False in get_peft_model; QLoRA: "
        "bnb_4bit_quant_storage in the dtype of the model.",
        pattern=r"expected there to be only one unique element in|assert len\(set\(t\.dtype for t in tensors\)\)",
        role=Role.GENERAL,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/3634",),
    ),
    Signature(
        id="inference_tensor_in_training",
        title="a tensor that was made under torch.inference_mode is used in training",
        what="With ZeRO-3 it is most likely a parameter: gathered during an evaluation or a generation under "
        "torch.inference_mode and kept for the next pass. Otherwise an output of a model that ran under it.",
        remedy="torch.no_grad() instead of torch.inference_mode() around evaluation, generation and reference models; "
        "Lightning: Trainer(inference_mode=False). Clone outputs that are used further.",
        pattern=r"Inference tensors cannot be saved for backward|[Ii]nference tensor outside (?:of )?InferenceMode"
        r"|Cannot set version_counter for inference tensor|Inference tensors do not track version counter",
        role=Role.GENERAL,
    ),
    Signature(
        id="weight_on_meta_device",
        title="Cannot copy out of meta tensor: a weight was never loaded",
        what="The model was made on the meta device, without data, and this weight got none. Most likely: ZeRO-3 "
        "together with low_cpu_mem_usage, device_map or init_empty_weights; a release of transformers whose loading "
        "does not fit ZeRO-3; remote model code that copies or casts weights in __init__, or a weight that is missing "
        "in the checkpoint; deepspeed.init_inference of a meta model without a checkpoint.",
        remedy="Load without low_cpu_mem_usage, device_map and init_empty_weights under ZeRO-3, and try another "
        "release of transformers. init_inference: pass checkpoint=, and replace_with_kernel_inject=True if it is a "
        "kernel's model; AutoTP of Falcon, T5 and Mistral from the meta device needs DeepSpeed 0.13.0 or later.",
        pattern=r"[Cc]annot copy out of meta tensor|from the 'Meta' backend|cannot be called on meta tensors"
        r"|is not on the expected device meta|erroneously attempts to copy out of meta tensor"
        r"|is on the meta device|are on the meta device(?! because)|on device meta is not on",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/huggingface/transformers/issues/37300",
            "https://github.com/deepspeedai/DeepSpeed/issues/3012",
        ),
    ),
    Signature(
        id="trace_cache_invalidated",
        title="ZeRO-3: the order of modules has changed (harmless)",
        what="A pass ran the modules in another order than the one before (generation, evaluation, MoE, branches); "
        "ZeRO-3 records it anew and prefetches less meanwhile.",
        remedy='Nothing, unless it appears in each step and is slow: "stage3_prefetch_bucket_size": 0, for MoE '
        "deepspeed.utils.set_z3_leaf_modules.",
        pattern=r"Invalidate trace cache @ step",
        role=Role.NOTE,
    ),
)
