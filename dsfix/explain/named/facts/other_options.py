"""Other sections of the config: checkpoints, tensor parallelism, compiling; and how the config is read."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_load_universal",
        names=(
            "load_universal",
            "load_universal_checkpoint",
            "latest_universal",
        ),
        title="load_universal: the key that loads a universal checkpoint",
        what='It is a key of the section "checkpoint" of the DeepSpeed config; elsewhere, or as '
        "load_universal_checkpoint, it is ignored. load_checkpoint then reads latest_universal (or tag=), a directory "
        "that ds_to_universal made. With it a plain checkpoint cannot be loaded, and what is saved is a plain one "
        "again, so it belongs to one start only.",
        remedy='"checkpoint": {"load_universal": true} for the start after the conversion; then remove it.',
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.load_checkpoint",),
    ),
    Fact(
        id="of_use_node_local_storage",
        names=(
            "use_node_local_storage",
            "save_on_each_node",
        ),
        title="use_node_local_storage: checkpoints without a shared file system",
        what="Each node writes what its ranks need to resume on the same node; without it only one rank of all writes "
        "the model's states (ZeRO-3: each rank its own), and other nodes do not find them. The Trainer's "
        "save_on_each_node sets it. zero_to_fp32 and another placement of the ranks need the files of all nodes in "
        "one directory; since 0.17.1 rank 0 alone writes the file latest.",
        remedy="A shared directory if there is one; otherwise copy latest and the files of all nodes together to "
        "convert or to move.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_checkpointing",),
    ),
    Fact(
        id="of_tag_validation",
        names=(
            "tag_validation",
            "_checkpoint_tag_validation",
        ),
        title="tag_validation: all ranks must save under one tag",
        what="save_checkpoint compares the tag over all ranks: with Fail, a difference (a tag with the rank, the "
        "time or the loss in it) is an assertion, with Warn, the default, a warning and files in several directories. "
        "It is a collective: a rank that does not save makes the others wait.",
        remedy="The same tag on all ranks (the step), save_checkpoint on all ranks.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._checkpoint_tag_validation",),
    ),
    Fact(
        id="autotp_layers",
        names=(
            "partition_config",
            "preset_model",
        ),
        title="tensor_parallel.partition_config, preset_model: which layers are divided",
        what="Without them transformers' own plan of the model (newer releases) or the names of its linear layers "
        "decide; layers that are not known are left whole, or divided wrongly. Since 0.18.6 preset_model names a "
        "known architecture, and partition_config gives patterns of the layers' names.",
        remedy="preset_model, or a partition_config for a model of one's own; compare the loss with autotp_size 1.",
        affects={"deepspeed": ">=0.18.6"},
        evidence=("deepspeed.runtime.tensor_parallel.config",),
    ),
    Fact(
        id="of_deepcompile_section",
        names=(
            "DeepCompile",
            "deepcompile_backward_prologue",
            "free_activation",
            "offload_opt_states",
        ),
        title="deepcompile: it needs engine.compile()",
        what='"compile": {"deepcompile": true} alone compiles nothing, and gradients are wrong through 0.17.6: the '
        "script calls engine.compile() after deepspeed.initialize. It needs CUDA and torch 2.6 or later, through "
        "0.18.9 also not a newer one than the release knows (2.9 in 0.18.9); without ZeRO torch's compiler is used "
        "instead. Frozen parameters fail with ZeRO-3 through 0.19.5.",
        remedy="A current DeepSpeed; false to compare; torch.compile of the model's blocks works without it.",
        affects={"deepspeed": ">=0.16.6"},
        evidence=(
            "deepspeed.compile.config",
            "deepspeed.runtime.engine.DeepSpeedEngine.compile",
        ),
    ),
    Fact(
        id="at_config_init",
        names=(
            "deepspeed/runtime/config.py:_initialize_params",
            "deepspeed/runtime/config_utils.py:__init__",
            "deepspeed/runtime/config_utils.py:dict_raise_error_on_duplicate_keys",
        ),
        title="the config is read here: a key or a value that this release does not take",
        what='Most likely "auto" where nothing filled it in, a key that the installed release does not have or that '
        "stands in another section, a number with a fraction (0.15.0 and later), a key that is written twice, or fp16 "
        "and bf16 both enabled. Keys at the top level that are misspelled are ignored silently.",
        remedy="`python -m dsfix check CONFIG` for the installed release; the last line of the traceback names the "
        "key.",
        evidence=("deepspeed.runtime.config.DeepSpeedConfig._initialize_params",),
    ),
)
