"""Tensors on several devices, and models that are spread over several."""

from __future__ import annotations

from ..signature import Role, Signature

_DEVICES = "Expected all tensors to be on the same device"
_WITHOUT_MAP = (
    'Load the model without device_map (not "auto" either): each rank has one device, and ZeRO-3 spreads the model. '
    "dsfix refuses such a model in front of deepspeed.initialize, and names its modules; DSFIX_DEVICE_MAP=repair "
    "removes the map."
)

SIGNATURES = (
    Signature(
        id="device_map_several_devices",
        title="tensors on two GPUs in one rank: a model that was loaded with device_map",
        what='One rank works on one GPU. device_map="auto" has spread the modules of the model over several, and the '
        "hooks of accelerate that move tensors between them do not go with DeepSpeed.",
        remedy=_WITHOUT_MAP,
        # torch's words differ by operation and release: "cuda:7 and cuda:0!", "index is on cuda:0, different from …"
        pattern=rf"{_DEVICES}[^\n]*cuda:(\d+)\b[^\n]*cuda:(?!\1\b)\d",
        role=Role.GENERAL,
        evidence=("https://github.com/QwenLM/Qwen2.5-Omni/issues/35",),
    ),
    Signature(
        id="module_left_on_cpu",
        title="tensors on cuda and cpu: a sub-module or a buffer has stayed on the CPU",
        what="Under ZeRO-3 the engine moves no module: a buffer that zero.Init does not redirect, and what is attached "
        "or loaded later, stays where it is. In Qwen-Omni it is the talker, the part that speaks, or, in "
        "kaiser_sinc_filter1d, its token2wav, which zero.Init cannot even build.",
        remedy="dsfix.placement_report(engine) names it; DSFIX_PLACEMENT=move moves buffers. Qwen-Omni with ms-swift: "
        "ENABLE_AUDIO_OUTPUT=0. Otherwise move the inputs, or the module, to the rank's device.",
        pattern=rf"{_DEVICES}(?=[^\n]*cuda:\d)[^\n]*\bcpu\b",
        role=Role.GENERAL,
        evidence=("https://github.com/modelscope/ms-swift/issues/3824",),
    ),
    Signature(
        id="device_map_refused",
        title="the model was loaded with device_map, which transformers or accelerate refuses",
        what="device_map spreads one model over several devices; with ZeRO-3, and in any distributed job, each rank "
        "has one.",
        remedy=_WITHOUT_MAP,
        pattern=r"Zero-3 is not compatible with [^\n]*device_map"
        r"|can't train a model that has been loaded with .?device_map='auto'",
    ),
)
