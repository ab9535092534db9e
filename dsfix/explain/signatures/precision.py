"""fp16, bf16 and autocast."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="autocast_outside",
        title="torch.autocast around an engine, but not in its config",
        what="With ZeRO-3, DeepSpeed 0.17.2 to 0.17.5 raise an error if the script or transformers' Trainer enters "
        "torch.autocast itself; later releases only warn.",
        remedy='DeepSpeed 0.17.6 or later; or "torch_autocast": {"enabled": true} in the config.',
        patches=("zero3_nested_autocast_assertion",),
    ),
    Signature(
        id="loss_scale_at_minimum",
        title="fp16: the loss scale is at its minimum, but the gradients still overflow",
        what="The steps that halved it had inf or nan gradients; halving the loss scale does not help, so the "
        "gradients "
        "are not large but invalid, or the model needs the range of bf16.",
        remedy="Use bf16 if the hardware supports it (Ampere or later; V100 and T4 do not: fp32 there for a model that "
        "was trained in bf16). Otherwise look for the source of NaN: the data, the learning rate; after many good "
        "steps the training has most likely diverged: an earlier checkpoint and a lower learning rate.",
        pattern=r"Current loss scale already at minimum"
        r"|Attempted loss scale: [01](?:\.0)?,(?: but hysteresis is \d+\. R|r| r)educing (?:to"
        r"|hysteresis to) [01](?:\.0)?\b",
        affects={"deepspeed": ">=0.12.0"},
    ),
    Signature(
        id="loss_scale_searched",
        title="fp16: a step was skipped because its gradients overflow, and the loss scale is halved",
        what="This is how dynamic loss scaling finds its scale: expected in the first steps (initial_scale_power 16 "
        "is 65536) and now and then later. Not if nearly every step is skipped, or the scale falls towards 1: then "
        "the gradients are inf or nan at any scale.",
        remedy="Nothing, if it stops. Otherwise bf16, above all for a model that was trained in bf16, a lower learning "
        "rate, or look for the source of NaN.",
        pattern=r"OVERFLOW! Rank -?\d+ Skipping step|Overflow detected\. Skipping step|Grad overflow on iteration",
        role=Role.NOTE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/931",),
    ),
    Signature(
        id="adagrad_without_state",
        title="torch's Adagrad before torch 2.12: no state for DeepSpeed's fp32 copies of the parameters",
        what="It creates its state in its constructor, for the model's parameters. fp16 and bf16 without ZeRO, and "
        "BF16_Optimizer (bf16, ZeRO-1, fp32 gradients), then replace these by fp32 copies, and the first step finds no "
        "state for them.",
        remedy="torch 2.12 or later, where half_adagrad_checkpoint also mends save_checkpoint; ZeRO-2, which "
        "creates Adagrad's state anew; or another optimizer.",
        pattern=r"in _init_group\n[^\n]*state_sums\.append\(state\[[\"']sum[\"']\]\)[\s\S]{0,120}KeyError: 'sum'",
        affects={"deepspeed": ">=0.12.0", "torch": "<2.12"},
    ),
    Signature(
        id="half_batch_norm",
        title="bf16 or fp16: BatchNorm has half weights and fp32 statistics",
        what="Since 0.19.2, DeepSpeed casts parameters to half precision and leaves buffers in fp32. torch's BatchNorm "
        "rejects the mixture on the CPU. dsfix has no patch: another cast could change the results of jobs that work "
        "on a GPU.",
        remedy='"data_types": {"buffer_dtype": "bf16"} (or "fp16") in the config, which casts all buffers, including '
        "the frequencies of rotary embeddings.",
        pattern=r"in batch_norm\n[\s\S]{0,200}expected scalar type (BFloat16|Half) but found Float",
        affects={"deepspeed": ">=0.19.2"},
        evidence=pull(8066),
    ),
    Signature(
        id="autocast_of_another_engine",
        title="KeyError, a dtype: ZeRO has no bucket for the dtype of a gradient",
        what="Most likely another engine of this process was made with torch_autocast: that it is used is one state of "
        "the process, and this engine's optimizer then looks for buckets of the parameters' dtypes instead of those "
        'of "communication_data_type". An engine that is made after one with torch_autocast does so without an error.',
        remedy='The same "torch_autocast" for all engines that train in a process; or no "communication_data_type" '
        "that differs from the dtype of the parameters.",
        pattern=r"in reduce_independent_p_g_buckets_and_remove_grads\n[^\n]*\n?[^\n]*self\.ipg_buckets\["
        r"[\s\S]{0,200}KeyError: torch\.",
        affects={"deepspeed": ">=0.17.2"},
        role=Role.POSSIBLE,
        evidence=pull(7946),
    ),
    Signature(
        id="float64_gradients",
        title="without ZeRO: gradients in float64 are refused",
        what="Since 0.13.0 gradients are reduced only in the dtypes that the accelerator is said to support, and "
        "float64 is none of them. A module or a parameter is in float64 (double()), or was made from NumPy's arrays.",
        remedy="Cast it to float32 before deepspeed.initialize; or ZeRO-1, which does not ask for the dtype. Through "
        "0.12.6 float64 is accepted, and reduced in float32.",
        pattern=r"attempting to reduce an unsupported grad type: torch\.float64",
        affects={"deepspeed": ">=0.13.0"},
    ),
)
