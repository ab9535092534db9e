"""fp16, bf16 and autocast."""

from __future__ import annotations

from ..signature import Signature

SIGNATURES = (
    Signature(
        id="autocast_outside",
        title="torch.autocast around an engine whose config does not know of it",
        what="DeepSpeed 0.17.2 to 0.17.5 stop under ZeRO-3 where the script, or transformers' Trainer, enters "
        "torch.autocast by itself; newer ones warn.",
        remedy='DeepSpeed 0.17.6 or newer; or "torch_autocast": {"enabled": true} in the config.',
        patches=("zero3_nested_autocast_assertion",),
    ),
    Signature(
        id="loss_scale_at_minimum",
        title="fp16: the loss scale is at its minimum, and the gradients still overflow",
        what="Each step so far had gradients that are inf or nan; halving the loss scale does not help, so they are "
        "not large but broken, or the model needs the range of bf16.",
        remedy="bf16 where the hardware has it. Else look for NaN: the data, the learning rate, a model that was "
        "trained in bf16.",
        pattern=r"Current loss scale already at minimum",
        affects={"deepspeed": ">=0.12.0"},
    ),
)
