"""What Lightning's DeepSpeed strategy refuses."""

from __future__ import annotations

from ..phrases import NO_ERROR_BUT_IN_SOURCE
from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="lightning_device_indices",
        title="Lightning: devices by index do not fit DeepSpeed's local ranks",
        what="DeepSpeed uses the GPU whose number is the local rank: the first process GPU 0, and so on.",
        remedy="devices=N, and CUDA_VISIBLE_DEVICES=… for which GPUs these are.",
        pattern=r"selected device indices [^\n]{0,200}don't match the local rank",
    ),
    Signature(
        id="lightning_checkpoint_not_engines",
        title="Lightning: the checkpoint is not one of DeepSpeed's",
        what="The strategy resumes from the directory that it saved. A single file (of another strategy, or made by "
        "zero_to_fp32) has weights only; a path inside of the directory is refused, too.",
        remedy="ckpt_path= the directory itself; of a single file the weights: "
        "DeepSpeedStrategy(load_full_weights=True), or load_state_dict before the Trainer starts.",
        pattern=r"DeepSpeed was unable to load the checkpoint\. Ensure",
    ),
    Signature(
        id="lightning_saves_by_engine",
        title="Lightning's DeepSpeed strategy: an option that its saving or its initialisation does not have",
        what="The engine writes the checkpoint, not Lightning's CheckpointIO, so that storage_options are refused; and "
        "under ZeRO-3 zero.Init makes the parameters, so that empty_init cannot be chosen.",
        remedy="Leave the option out: a local directory, copied elsewhere afterwards; no empty_init.",
        pattern=r"`storage_options` arg is not supported for `?DeepSpeed"
        r"|is not a valid choice with `?DeepSpeedStrategy",
    ),
    Signature(
        id="cut_in_lightning_trainer",
        title="an error while Lightning makes its Trainer; its message is not in the log",
        what="It cannot be told without the message. Seen here with DeepSpeed: the strategy's object is of the other "
        "package (lightning and pytorch_lightning are two, and must not be mixed), DeepSpeed is not installed or "
        "cannot be imported, the path of its config does not exist, or no GPU is visible.",
        remedy="The Trainer and DeepSpeedStrategy from one package: import lightning.pytorch as pl, and "
        'pl.strategies.DeepSpeedStrategy; python -c "import deepspeed" shows whether that works.',
        pattern=r"lightning/(?:pytorch/)?utilities/argparse\.py\", line \d+, in insert_env_defaults"
        + NO_ERROR_BUT_IN_SOURCE,
        role=Role.FAMILY,
        evidence=("https://github.com/Lightning-AI/pytorch-lightning/issues/19569",),
    ),
)
