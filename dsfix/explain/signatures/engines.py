"""Steps, checkpoints and settings of an engine, and its precision."""

from __future__ import annotations

from ..signature import Role, Signature


def _link(number: int) -> tuple[str]:
    return (f"https://github.com/deepspeedai/DeepSpeed/pull/{number}",)


SIGNATURES = (
    Signature(
        id="torch_without_is_compiling",
        title="import deepspeed: module 'torch.compiler' has no attribute 'is_compiling'",
        what="0.15.3 calls a function of torch that torch 2.2 and earlier do not have.",
        remedy="DeepSpeed 0.15.4 or later, or 0.15.2; or torch 2.3 or later.",
        pattern=r"module 'torch\.compiler' has no attribute 'is_compiling'",
        affects={"deepspeed": "==0.15.3"},
        evidence=_link(6663),
    ),
    Signature(
        id="dynamo_on_python_312",
        title="import deepspeed: Dynamo is not supported on Python 3.12+",
        what="0.18.6 compiles functions with torch.compile when it is imported; before torch 2.4 that fails on Python "
        "3.12.",
        remedy="torch 2.4 or later; or DeepSpeed 0.18.5 (0.18.7 and 0.18.8 need torch 2.4 for another reason).",
        pattern=r"in jit_script_compat[\s\S]*Dynamo is not supported on Python 3\.12",
        affects={"deepspeed": "==0.18.6", "torch": "<2.4"},
        evidence=_link(7875),
    ),
    Signature(
        id="backward_needs_torch_23",
        title="count_used_parameters_in_backward requires internal PyTorch APIs that are not available",
        what="Since 0.18.3 ZeRO's backward pass uses private functions of torch that are not in torch 2.2 and earlier.",
        remedy="torch 2.5 or later (2.3 with DeepSpeed 0.18.7 or later); or DeepSpeed 0.18.2.",
        pattern=r"count_used_parameters_in_backward requires internal PyTorch APIs",
        affects={"deepspeed": ">=0.18.3"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7756",),
    ),
    Signature(
        id="communication_type_bfp16",
        title='communication_data_type "bf16" is refused',
        what='Through 0.14.0 the name for bfloat16 in this key is "bfp16".',
        remedy='"communication_data_type": "bfp16", or DeepSpeed 0.14.1 or later with "bf16"; or leave it out.',
        pattern=r"Invalid communication_data_type\. Supported data types: \['fp16', 'bfp16'",
        affects={"deepspeed": "<0.14.1"},
        evidence=_link(5297),
    ),
    Signature(
        id="frozen_parameter_replaced",
        title="saving: failed to find frozen parameter in named params",
        what="A frozen parameter was replaced, tied to another one or added after deepspeed.initialize, which notes "
        "the names of all parameters.",
        remedy="Do that before deepspeed.initialize; or engine.save_checkpoint(…, exclude_frozen_parameters=True), if "
        "the frozen weights are kept elsewhere.",
        pattern=r"failed to find frozen [\s\S]* in named params",
        affects={"deepspeed": ">=0.12.0"},
        evidence=_link(6626),
    ),
    Signature(
        id="load_module_only_refresh",
        title="load_checkpoint(load_module_only=True): no attribute 'refresh_fp32_params'",
        what="0.13.0 to 0.16.4 expect of every optimizer that it keeps fp32 copies; without fp16, bf16 and ZeRO it "
        "does not.",
        remedy="DeepSpeed 0.16.5 or later; or load_optimizer_states=False, load_lr_scheduler_states=False instead.",
        pattern=r"object has no attribute 'refresh_fp32_params'",
        affects={"deepspeed": ">=0.13.0,<0.16.5"},
        evidence=_link(7133),
    ),
    Signature(
        id="universal_padding_too_long",
        title="ds_to_universal: narrow(): length must be non-negative: the recorded padding is too long",
        what="Through 0.16.3 ZeRO-1 and ZeRO-2 write the padding of a small parameter group into the last rank's file "
        "even where it fills other ranks' parts, too. A checkpoint that is written like that stays so.",
        remedy="Resume with the same number of ranks, and write a new checkpoint with DeepSpeed 0.16.4 or later.",
        pattern=r"in _strip_tensor_paddings[\s\S]*length must be non-negative",
        affects={"deepspeed": ">=0.12.0"},
        evidence=(*_link(6974), *_link(7426)),
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
        id="bf16_optimizer_state",
        title="'BF16_Optimizer' object has no attribute 'state'",
        what="Through 0.14.4 the optimizer of bf16 without ZeRO, or of ZeRO-1 with fp32 accumulation, does not show "
        "the states of the one that it contains.",
        remedy="engine.optimizer.optimizer.state, or DeepSpeed 0.14.5 or later.",
        pattern=r"'BF16_Optimizer' object has no attribute 'state'",
        affects={"deepspeed": "<0.14.5"},
        evidence=_link(5767),
    ),
    Signature(
        id="bf16_without_gradients",
        title="bf16: a step on a rank that has no gradient at all",
        what="The optimizer of bf16 without ZeRO, or of ZeRO-1 with fp32 accumulation, takes the norm of its gradients, "
        "and there are none: no backward pass before the step, or only experts or other ranks' layers were trained.",
        remedy="A backward pass before each step; ZeRO-2, or ZeRO-1 without data_types.grad_accum_dtype.",
        pattern=r"bf16_optimizer\.py[\s\S]*in get_global_norm_of_tensors[\s\S]*"
        r"(?:IndexError: list index out of range|stack expects a non-empty TensorList)",
        affects={"deepspeed": ">=0.12.0"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7409",),
    ),
    Signature(
        id="fp16_static_scale_timers",
        title="fp16 without ZeRO, FusedAdam and a static loss_scale: 'NoneType' object is not callable",
        what="Through 0.17.0 the optimizer is made without the timers that its step starts.",
        remedy='DeepSpeed 0.17.1 or later; or "loss_scale": 0 (dynamic).',
        pattern=r"fp16/fused_optimizer\.py[\s\S]*self\.timers\([\s\S]*'NoneType' object is not callable",
        affects={"deepspeed": "<0.17.1"},
        evidence=_link(7330),
    ),
    Signature(
        id="launcher_quotes",
        title="deepspeed launcher: No closing quotation",
        what="Through 0.12.4 the launcher puts quotes around each of the script's arguments and splits them again: "
        "an apostrophe in one (through 0.12.3) or a double quote (0.12.4) fails.",
        remedy="DeepSpeed 0.12.5 or later; torchrun; or read the text from a file.",
        pattern=r"deepspeed/launcher/runner\.py[\s\S]*ValueError: No closing quotation",
        affects={"deepspeed": "<0.12.5"},
        evidence=(*_link(4660), *_link(4824)),
    ),
    Signature(
        id="pipeline_tied_frozen",
        title="pipeline: tied layers that are frozen (LoRA) have no gradient to reduce",
        what="Through 0.15.3 the gradients of tied weights are reduced without asking whether there are any.",
        remedy="DeepSpeed 0.15.4 or later.",
        pattern=r"in _exec_reduce_tied_grads[\s\S]*NoneType",
        affects={"deepspeed": "<0.15.4"},
        evidence=_link(5477),
    ),
)
