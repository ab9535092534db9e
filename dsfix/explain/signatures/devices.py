"""Tensors and models on several devices."""

from __future__ import annotations

from ..signature import Role, Signature

_DEVICES = "Expected all tensors to be on the same device"
_WITHOUT_MAP = (
    'Load the model without device_map (not even "auto"): each rank has one device, and ZeRO-3 partitions the model. '
    "dsfix rejects such a model before deepspeed.initialize and names its modules; DSFIX_DEVICE_MAP=repair removes the "
    "map."
)

SIGNATURES = (
    Signature(
        id="cuda_only_operation",
        title="an operation that exists on the GPU only gets a tensor on the CPU",
        what="With DeepSpeed most likely a parameter or a state that is offloaded to the CPU meets a kernel for the "
        "GPU (bitsandbytes, Triton, flash attention); otherwise an input or a module that was not moved.",
        remedy="No 8-bit optimizer and no 4-bit model together with offload; without offload the error tells which "
        "tensor it is.",
        pattern=r"Expected a cuda device, but got: cpu|input tensors need to be on the same GPU"
        r"|cannot be accessed from Triton \(cpu tensor",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="device_map_several_devices",
        title="tensors on two GPUs in one rank: most likely a model loaded with device_map",
        what='Each rank uses one GPU. device_map="auto" has placed the modules of the model on several, and '
        "accelerate's hooks that move tensors between them do not work with DeepSpeed. Otherwise the rank does not "
        "use its own GPU: inputs or a second model on cuda:0, or no torch.cuda.set_device(LOCAL_RANK) before them.",
        remedy=_WITHOUT_MAP,
        # torch's message depends on operation and release: "cuda:7 and cuda:0!", "index is on cuda:0, different from …"
        pattern=rf"{_DEVICES}[^\n]*cuda:(\d+)\b[^\n]*cuda:(?!\1\b)\d",
        role=Role.GENERAL,
        evidence=("https://github.com/QwenLM/Qwen2.5-Omni/issues/35",),
    ),
    Signature(
        id="module_left_on_cpu",
        title="tensors on cuda and cpu: a submodule, a buffer or an input is still on the CPU",
        what="With ZeRO-3 the engine does not move modules: buffers that zero.Init does not redirect, and modules "
        "attached or loaded later, stay where they are. Otherwise inputs that were not moved; or, in the optimizer's "
        "step with offload to the CPU, DeepSpeed 0.14.1 and 0.14.2 themselves, when they clip the gradients.",
        remedy="dsfix.placement_report(engine) names the module; DSFIX_PLACEMENT=move moves buffers. Otherwise move "
        "the inputs or the module to the rank's device. In unscale_and_clip_grads: dsfix, or DeepSpeed 0.14.3.",
        pattern=rf"{_DEVICES}(?=[^\n]*cuda:\d)[^\n]*\bcpu\b",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/3583",),
    ),
    Signature(
        id="talker_left_on_cpu",
        title="Qwen-Omni: its speech part is still on the CPU",
        what="With ZeRO-3 the engine does not move modules. The talker, or, in kaiser_sinc_filter1d, token2wav, which "
        "zero.Init cannot even build, was attached or loaded later and stays on the CPU.",
        remedy="ms-swift: ENABLE_AUDIO_OUTPUT=0. dsfix.placement_report(engine) names what is left; "
        "DSFIX_PLACEMENT=move moves buffers.",
        pattern=rf"(?:qwen\w*_omni|kaiser_sinc_filter1d)[\s\S]*{_DEVICES}(?=[^\n]*cuda:\d)[^\n]*\bcpu\b",
        role=Role.GENERAL,
        evidence=("https://github.com/modelscope/ms-swift/issues/3824",),
    ),
    Signature(
        id="device_map_refused",
        title="the model was loaded with device_map or low_cpu_mem_usage, which transformers or accelerate rejects",
        what="device_map places one model on several devices; with ZeRO-3, and in any distributed job, each rank has "
        "one. low_cpu_mem_usage=True, and loading in 4 or 8 bits, which sets it, load in a way that ZeRO-3's own "
        "partitioning replaces. unsloth (use_unsloth) always loads with a device_map.",
        remedy=f"{_WITHOUT_MAP} No unsloth with ZeRO-3. Leave low_cpu_mem_usage out, too. Quantized (QLoRA): ZeRO-2, "
        "or releases of transformers and peft that support it.",
        pattern=r"Zero-3 is not compatible with [^\n]*(?:device_map|low_cpu_mem_usage)"
        r"|can't train a model that has been loaded with .?device_map='auto'",
    ),
    Signature(
        id="reference_model_refused",
        title="TRL cannot copy a model for reference under ZeRO-3",
        what="create_reference_model copies weights that ZeRO-3 has partitioned.",
        remedy="Load the reference model by AutoModelForCausalLM.from_pretrained and pass it as ref_model; with LoRA "
        "no reference model is needed (ref_model=None).",
        pattern=r"not compatible with `?create_reference_model"
        r"|(?i:zero-?_? ?3)[^\n]{0,80}create_reference_model",
        evidence=("https://github.com/huggingface/trl/issues/3016",),
    ),
    Signature(
        id="indexed_tensor_on_cpu",
        title="a tensor on the CPU is indexed by one on the GPU",
        what="With ZeRO-3 most likely a buffer or a cached tensor of the model (rotary cos and sin, a mask) that was "
        "not moved to the GPU: the engine does not move modules there.",
        remedy="dsfix.placement_report(engine) names what is left; DSFIX_PLACEMENT=move moves buffers; a newer "
        "transformers makes these tensors on the inputs' device.",
        pattern=r"indices should be either on cpu or on the same device as the indexed tensor \(cpu",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/24468",),
    ),
)
