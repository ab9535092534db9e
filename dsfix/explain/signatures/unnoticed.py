"""What seems to do nothing, or to be wrong, and works as it was made."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature

_NOTHING = (
    r"(?:not work|n't work|not effect|no effect|not take effect|not applied|n't applied|not enabled|n't clip|not clip"
    r"|is ignored|are ignored|do nothing|does nothing|no-op|not respected|不生效|无效|没有生效|不起作用|失效)"
)

SIGNATURES = (
    Signature(
        id="clipping_seems_ignored",
        title="gradient clipping seems to do nothing",
        what="DeepSpeed clips in its own optimizers (ZeRO, fp16, bf16; without them in the engine), by "
        "gradient_clipping of its config, where 0, the default, is none. The norm that is logged, also that of "
        "engine.get_global_grad_norm(), is the one before clipping, so it exceeds the limit. "
        "accelerator.clip_grad_norm_ does not clip under DeepSpeed, and torch's clip_grad_norm_ does not see ZeRO's "
        "gradients.",
        remedy='"gradient_clipping" in the DeepSpeed config: a number, or "auto" with the Trainer, which fills in '
        "max_grad_norm; gradient_clipping of accelerate's DeepSpeed config. Then a logged norm above it is no error.",
        pattern=r"(?:clip_grad_norm|max_grad_norm|gradient_clipping|radient clipping|lipping grad|clip grad"
        r"|clip the grad"
        r"|grad clip)[^\n]{0,60}"
        + _NOTHING
        + r"|梯度裁剪[^\n]{0,20}"
        + _NOTHING
        + r"|grad_norm[^\n]{0,40}(?:greater|larger|bigger|higher|more) than (?:the )?(?:max_grad_norm"
        r"|gradient_clipping)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6743",),
    ),
    Signature(
        id="config_keys_not_checked",
        title="a misspelled key of the DeepSpeed config does nothing",
        what="DeepSpeed reads the keys that it knows and ignores others without a message, at the top level of the "
        "config above all. zero_optimization (since 0.7.0) and the sections that later releases check refuse an "
        "unknown key.",
        remedy="`python -m dsfix check CONFIG` names the keys that the installed release does not know. The config "
        "that rank 0 prints at the start shows what counts.",
        pattern=r"config[^\n]{0,120}silently ignor|silently ignor[^\n]{0,80}config"
        r"|misspelled [^\n]{0,40}config|param(?:eter)? (?:naming )?validation in config|"
        + phrases("typo in ", "the |my |ds_|", "config"),
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/653",),
    ),
    Signature(
        id="printed_weights_are_placeholders",
        title="weights that are printed look empty or unchanged under ZeRO-3",
        what="Nothing is wrong with that by itself: ZeRO-3 partitions each weight, also those that from_pretrained "
        "loads while a ZeRO-3 config is active, and between the modules' own calls the parameter is an empty "
        "placeholder (size 0). In 16 bits a small update can also be lost to rounding in the copy that is printed; "
        "the optimizer's fp32 weights have it.",
        remedy="deepspeed.utils.safe_get_full_fp32_param(param) after the step, on all ranks, or with "
        "deepspeed.zero.GatheredParameters(params): around the code that reads them. param.ds_shape is the size.",
        pattern=r"(?:"
        + phrases("print |printed |prints |printing ", "the |the model |model |", "parameters|weights")
        + r")[^\n]{0,200}(?:not (?:to )?(?:be )?(?:updat|chang)|unchanged|empty|torch\.Size\(\[0\]\))"
        r"|printed parameters seem"
        r"|[Ee]mbedding (?:layer )?size (?:is )?0 |embedding weights? (?:is|are|has|have) (?:empty|size 0|shape \[0\])",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/transformers/issues/32021",),
    ),
)
