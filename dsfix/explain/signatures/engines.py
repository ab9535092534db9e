"""Steps, checkpoints and settings of an engine, and its precision."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="dynamo_on_python_312",
        title="import deepspeed: Dynamo is not supported on Python 3.12+",
        what="0.18.6 compiles functions with torch.compile when it is imported; before torch 2.4 that fails on Python "
        "3.12.",
        remedy="torch 2.4 or later; or DeepSpeed 0.18.5 (0.18.7 and 0.18.8 need torch 2.4 for another reason).",
        pattern=r"in jit_script_compat[\s\S]*Dynamo is not supported on Python 3\.12",
        affects={"deepspeed": "==0.18.6", "torch": "<2.4"},
        evidence=pull(7875),
    ),
    Signature(
        id="universal_padding_too_long",
        title="ds_to_universal: narrow(): length must be non-negative: the recorded padding is too long",
        what="Through 0.16.3 ZeRO-1 and ZeRO-2 write the padding of a small parameter group into the last rank's file "
        "even where it fills other ranks' parts, too. A checkpoint that is written like that stays so.",
        remedy="Resume with the same number of ranks, and write a new checkpoint with DeepSpeed 0.16.4 or later.",
        pattern=r"in _strip_tensor_paddings[\s\S]*length must be non-negative",
        affects={"deepspeed": ">=0.12.0"},
        evidence=(*pull(6974), *pull(7426)),
    ),
    Signature(
        id="fp16_auto_cast_of_indices",
        title="fp16.auto_cast casts token ids or labels to half",
        what='Through 0.15.2 "auto_cast" in the section fp16 casts all inputs, integers too, which an embedding or a '
        "loss then refuses. Without auto_cast the script passes halves where integers are needed.",
        remedy="DeepSpeed 0.15.3 or later; or leave auto_cast out and cast the inputs in the script.",
        pattern=r"deepspeed/runtime/engine\.py[\s\S]*to have one of the following scalar types: Long, Int; but got "
        r"(?:torch\.(?:cuda\.)?)?HalfTensor"
        r"|deepspeed/runtime/engine\.py[\s\S]*expected scalar type Long but found Half",
        affects={"deepspeed": "<0.15.3"},
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/commit/5c4b97f10",),
    ),
    Signature(
        id="bf16_without_gradients",
        title="bf16: a step on a rank that has no gradient at all",
        what="The optimizer of bf16 without ZeRO, or of ZeRO-1 with fp32 accumulation, takes the norm of its "
        "gradients, and there are none: no backward pass before the step, or only experts or layers of other ranks "
        "were trained.",
        remedy="A backward pass before each step; ZeRO-2, or ZeRO-1 without data_types.grad_accum_dtype.",
        pattern=r"bf16_optimizer\.py[\s\S]*in get_global_norm_of_tensors[\s\S]*"
        r"(?:IndexError: list index out of range|stack expects a non-empty TensorList)",
        affects={"deepspeed": ">=0.12.0"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7409",),
    ),
    Signature(
        id="half_frozen_group",
        title="fp16 or bf16 without ZeRO: a parameter group that is frozen altogether",
        what="Since 0.19.1 only trainable parameters are put into the fused optimizer's buffers, and a group without "
        "any cannot be flattened.",
        remedy="Leave groups without trainable parameters out: [g for g in groups if any(p.requires_grad for p in "
        "g['params'])].",
        pattern=r"fp16/fused_optimizer\.py[\s\S]*torch\.cat\(\): expected a non-empty list of Tensors",
        affects={"deepspeed": ">=0.19.1"},
    ),
    Signature(
        id="fp16_static_scale_timers",
        title="fp16 without ZeRO, FusedAdam and a static loss_scale: 'NoneType' object is not callable",
        what="Through 0.17.0 the optimizer is made without the timers that its step starts.",
        remedy='DeepSpeed 0.17.1 or later; or "loss_scale": 0 (dynamic).',
        pattern=r"fp16/fused_optimizer\.py[\s\S]*self\.timers\([\s\S]*'NoneType' object is not callable",
        affects={"deepspeed": "<0.17.1"},
        evidence=pull(7330),
    ),
    Signature(
        id="launcher_quotes",
        title="deepspeed launcher: No closing quotation",
        what="Through 0.12.4 the launcher puts quotes around each of the script's arguments and splits them again: "
        "an apostrophe in one (through 0.12.3) or a double quote (0.12.4) fails.",
        remedy="DeepSpeed 0.12.5 or later; torchrun; or read the text from a file.",
        pattern=r"deepspeed/launcher/runner\.py[\s\S]*ValueError: No closing quotation",
        affects={"deepspeed": "<0.12.5"},
        evidence=(*pull(4660), *pull(4824)),
    ),
    Signature(
        id="pipeline_tied_frozen",
        title="pipeline: tied layers that are frozen (LoRA) have no gradient to reduce",
        what="Through 0.15.3 the gradients of tied weights are reduced without asking whether there are any.",
        remedy="DeepSpeed 0.15.4 or later.",
        pattern=r"in _exec_reduce_tied_grads[\s\S]*NoneType",
        affects={"deepspeed": "<0.15.4"},
        evidence=pull(5477),
    ),
    Signature(
        id="map_style_name_missing",
        title="training_data of deepspeed.initialize: is_map_style_dataset is not defined",
        what="A bug of DeepSpeed 0.3.16: the engine calls as a function what is a method.",
        remedy="A newer DeepSpeed; or a DataLoader of the script's own, and no training_data.",
        pattern=r"name 'is_map_style_dataset' is not defined",
        affects={"deepspeed": "==0.3.16"},
    ),
)
