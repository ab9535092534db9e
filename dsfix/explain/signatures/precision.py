"""fp16, bf16 and autocast."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

_ONE_BIT = (
    "1-bit Adam|1-bit adam|1-bit LAMB|1-bit Lamb|1bit Adam|OneBitAdam|OnebitAdam|Onebitadam|onebitadam|OneBitLamb"
    "|OnebitLamb|ZeroOneAdam|0/1 Adam"
)

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
        "gradients are not large but invalid, or the model needs the range of bf16.",
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
        id="onebit_diverges",
        title="1-bit Adam, 0/1 Adam or 1-bit LAMB: the gradients overflow, or the loss diverges",
        what="From freeze_step (0/1 Adam: var_freeze_step) on the variance is no longer updated, and what is "
        "communicated is compressed to 1 bit. If that begins while the gradients or the learning rate still change "
        "much, the weights diverge: each step overflows then, and the loss scale falls without end. Parameters that "
        "get no gradient can do the same.",
        remedy="freeze_step (var_freeze_step) larger, at least to the end of the learning rate's warm-up, 15 to 25 % "
        "of all steps; a lower learning rate; cuda_aware only with an MPI that is built for CUDA. To compare: Adam in "
        "its place.",
        pattern=rf"(?:{_ONE_BIT})[^\n]{{0,120}}(?i:(?<!\w)overflow|diverg|(?<!\w)nan\b|infinite loop|not converg)"
        rf"|(?i:(?<!\w)loss[- ]scal|overflow|diverg|(?<!\w)nan\b|not converg)[^\n]{{0,80}}(?:{_ONE_BIT})",
        role=Role.POSSIBLE,
        affects={"deepspeed": "<0.19.7"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/753",),
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
    Signature(
        id="norm_of_gradients_not_positive",
        title="bf16 without ZeRO, or ZeRO-1 with fp32 accumulation: the norm of the gradients is inf, nan or 0",
        what="BF16_Optimizer asserts a norm above 0 (through 0.19.7). Most likely the loss is nan, or nothing in the "
        "batch is trained on: all labels masked (-100, a sequence that was cut before the answer).",
        remedy="Look at the loss and the labels of that batch; a longer cutoff; leave such samples out. dsfix's patch "
        "bf16_nonfinite_step_ends_job, or DeepSpeed 0.19.8 or later, lets the job go on.",
        pattern=r"assert all_groups_norm ?> ?0|assert all_grad_norm ?> ?0",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/9298",),
    ),
    Signature(
        id="accumulation_dtype_refused",
        title="data_types.grad_accum_dtype does not go with the precision and the stage",
        what="ZeRO accumulates gradients in the model's dtype (bf16 with ZeRO-1 in fp32, too); without ZeRO bf16 "
        "accumulates in fp32 only, and fp16 in fp16.",
        remedy='Remove "grad_accum_dtype" from the section data_types; or set "fp32" for bf16 without ZeRO, or with '
        "ZeRO-1.",
        pattern=r"odel data type and gradient accumulation data type must be equal"
        r"|Bfloat16 wrapper must use a gradient accumulation type"
        r"|unsupported mix of model[_ ]dtype|Unsupported gradient accumulation data type",
        role=Role.GENERAL,
    ),
    Signature(
        id="loss_scale_settings_refused",
        title="the section fp16: a number that loss scaling does not take",
        what="Newer releases check the numbers: loss_scale is a finite number (0: dynamic), windows and the least "
        "scale are above 0, powers are whole numbers.",
        remedy='"loss_scale": 0 with "loss_scale_window": 1000, "min_loss_scale": 1, "initial_scale_power": 16; or '
        "leave them out.",
        pattern=phrases(
            r"fp16\.loss_scale |fp16\.loss_scale_window |fp16\.min_loss_scale |fp16\.initial_scale_power "
            r"|fp16\.hysteresis ",
            "must be ",
        ),
        role=Role.GENERAL,
    ),
    Signature(
        id="parameter_dtype_conflicts",
        title="data_types.param_dtype contradicts fp16 or bf16",
        what="The section data_types and the enabled precision name two dtypes for the weights.",
        remedy='Leave "param_dtype" out, or set the "enabled" of the section that fits it.',
        pattern=r"data_types\.param_dtype='[^\n]{1,20}' conflicts with",
        role=Role.GENERAL,
    ),
    Signature(
        id="autocast_with_quantized_weights",
        title="torch_autocast does not go with ZeRO++'s quantized weights",
        what="Both decide the dtype in which weights are gathered.",
        remedy='"torch_autocast" off, or "zero_quantized_weights": false.',
        pattern=r"Cannot enable both torch autocast and zero quantized weights",
    ),
)
