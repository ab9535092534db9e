"""Elasticity: batch sizes for changing numbers of GPUs."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="elastic_batch_sizes",
        title="elasticity: no batch size fits the settings",
        what="The elastic config searches for a batch size up to max_train_batch_size that many numbers of GPUs divide "
        "with one of micro_batch_sizes. None of these may exceed max_train_batch_size, and the number of ranks of this "
        "job must be one that divides it.",
        remedy="ds_elastic -c CONFIG -w RANKS shows the result; other micro_batch_sizes, or another number of ranks. "
        '"elasticity": {"enabled": false} keeps the batch sizes of the config.',
        pattern=r"All micro batches must be less than\s+or equal to max_acceptable_batch_size"
        r"|Unable to find divisible micro batch size|Unable to find elastic logic for version",
    ),
    Signature(
        id="elastic_config_without_ranks",
        title="compute_elastic_config divides by a number of ranks that it was not given",
        what="With return_microbatch=True and an elasticity of another version than 0.2 it needs world_size, which is "
        "0 if it is not passed.",
        remedy="compute_elastic_config(…, world_size=N, return_microbatch=True).",
        pattern=r"compute_elastic_config[\s\S]{0,300}ZeroDivisionError",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8156",),
    ),
    Signature(
        id="elastic_training_disabled",
        title="deepspeed --enable_elastic_training: disabled for this torch",
        what="The launcher compares the release of torch as numbers, major and minor each: through 0.10.0 torch 2.0 "
        "counts as older than 1.11.",
        remedy="DeepSpeed 0.10.1 or later; or torchrun's own elasticity.",
        pattern=r"Disabling elastic training support as PyTorch version should be greater than",
        affects={"deepspeed": "<0.10.1"},
    ),
)
