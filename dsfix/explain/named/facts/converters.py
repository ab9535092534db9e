"""The converters of DeepSpeed's checkpoints: zero_to_fp32 and ds_to_universal."""

from __future__ import annotations

from ..fact import Fact

_FP32 = "deepspeed/utils/zero_to_fp32.py"
_UNIVERSAL = "deepspeed/checkpoint/ds_to_universal.py"

FACTS = (
    Fact(
        id="zero_to_fp32_of_stage_1",
        names=("zero_to_fp32", "zero_to_fp32.py", "convert_zero_checkpoint_to_fp32_state_dict"),
        title="zero_to_fp32 of a ZeRO-1 checkpoint",
        what='Through 0.9.5 it knows the stages 2 and 3 only ("unknown zero stage 1"). The copy in a checkpoint is of '
        "the release that saved it; a framework may have a copy of its own.",
        remedy="python -m deepspeed.utils.zero_to_fp32 . OUTPUT with DeepSpeed 0.10.0 or later; the checkpoint is "
        "complete, and need not be saved again.",
        beside=("zero-1 + saving", "zero-1 + loading", "zero-1 + checkpoint", "zero-1 + fails", "zero-1 + how"),
        affects={"deepspeed": "<0.10"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/3936",),
    ),
    Fact(
        id="zero_to_fp32_usage",
        names=("zero_to_fp32", "zero_to_fp32.py", "convert_zero_checkpoint_to_fp32_state_dict"),
        title="zero_to_fp32: what it reads and writes",
        what="It reads the directory that has `latest` and global_step…, with the files of all ranks, without a GPU. "
        "Since 0.15.3 the second argument is a directory, into which shards of 5 GB and an index are written; before, "
        "a file. The weights are fp32, twice the size of the model, under the names of the model that was trained.",
        remedy="python zero_to_fp32.py . OUTPUT [--safe_serialization] [-t global_step100]; add the config and the "
        "tokenizer, and cast to 16 bits after loading.",
        beside=("how", "saving", "large", "loading", "checkpoint", "fails"),
        evidence=(f"{_FP32}: convert_zero_checkpoint_to_fp32_state_dict",),
    ),
    Fact(
        id="zero_to_fp32_memory",
        names=(
            *("zero_to_fp32", "zero_to_fp32.py", "convert_zero_checkpoint_to_fp32_state_dict"),
            *("get_fp32_state_dict_from_zero_checkpoint", "load_state_dict_from_zero_checkpoint"),
        ),
        title="zero_to_fp32: the host memory that it takes",
        what="The whole fp32 model is in the host's memory, 4 bytes per parameter, and with ZeRO-1/2 up to twice "
        "that. The functions that a training script calls do so in every process that calls them. Since 0.16.0 the "
        "script works by shards with a ZeRO-3 checkpoint (the functions with lazy_mode=True).",
        remedy="The script of a DeepSpeed since 0.16.0, once, after the training. In a script: rank 0 only, and "
        "lazy_mode=True.",
        beside=("oom", "memory", "host", "ends", "slow"),
        evidence=(f"{_FP32}: get_fp32_state_dict_from_zero_checkpoint",),
    ),
    Fact(
        id="fp32_weights_in_script",
        names=("get_fp32_state_dict_from_zero_checkpoint", "load_state_dict_from_zero_checkpoint"),
        title="loading the fp32 weights of a checkpoint in a script",
        what="The argument is the directory that has `latest`, or tag= is given. load_state_dict_from_zero_checkpoint "
        "moves the model to the CPU and loads with strict=False: names that differ, as a wrapper's or PEFT's, load "
        "nothing without an error. The model must be a plain one; after it the engine is unusable.",
        remedy="state_dict = get_fp32_state_dict_from_zero_checkpoint(directory), compare its keys with "
        "model.state_dict(), and load with strict=True into a model that was made outside of ZeRO-3.",
        evidence=(f"{_FP32}: load_state_dict_from_zero_checkpoint",),
    ),
    Fact(
        id="ds_to_universal_usage",
        names=("ds_to_universal", "ds_to_universal.py"),
        title="universal checkpoints: how they are made and loaded",
        what="ds_to_universal.py takes the directory global_step… and an output directory without a final slash, "
        "writes latest_universal beside it, and is for Adam's states. ZeRO-1/2 checkpoints need "
        "universal_checkpoint_info, which Megatron-DeepSpeed writes, or --inject_missing_state. For ZeRO-3 since "
        "0.14.5; before 0.18.0 with several parameter groups the conversion fails, or only the first one is loaded.",
        remedy='"checkpoint": {"load_universal": true} in the config, and load_checkpoint of the parent directory.',
        patches=(
            *("universal_checkpoint_weights_only", "universal_checkpoint_subgroups", "universal_checkpoint_rank_order"),
            *("universal_checkpoint_leaves_frozen", "universal_checkpoint_load_subgroups"),
        ),
        evidence=(f"{_UNIVERSAL}: main",),
    ),
    Fact(
        id="universal_workers",
        names=("num_extract_workers", "num_merge_workers", "keep_temp_folder", "inject_missing_state"),
        title="ds_to_universal.py: its options",
        what="--num_extract_workers (4) and --num_merge_workers (2) are processes that hold the file of a rank or the "
        "slices of a parameter each, so that more of them take more host memory. --inject_missing_state is for "
        "checkpoints that Megatron-DeepSpeed did not write. The directory tmp is as large as the checkpoint.",
        remedy="Workers 1 and 1 if the memory runs out; the output on a fast local disk if it is slow.",
        evidence=(f"{_UNIVERSAL}: parse_arguments",),
    ),
    Fact(
        id="frame_universal_conversion",
        names=(
            *(f"{_UNIVERSAL}:extract_zero_shards", f"{_UNIVERSAL}:extract_zero_shards_stage3"),
            *(f"{_UNIVERSAL}:merge_tp_slices", f"{_UNIVERSAL}:merge_zero3_slices", f"{_UNIVERSAL}:_merge_zero_shards"),
            *(f"{_UNIVERSAL}:dump_param_fragment", f"{_UNIVERSAL}:_do_parallel_work", f"{_UNIVERSAL}:_save_checkpoint"),
        ),
        title="ds_to_universal.py takes apart or joins a parameter's states",
        what="Its worker processes read the ranks' files and write one file per state and rank. It fails on other "
        "states than Adam's, files of some ranks that are missing, several parameter groups or sub-groups with ZeRO-3 "
        "before 0.18.0, torch 2.6's weights_only before 0.16.0, a full disk or too many inodes, or no memory for all "
        "workers.",
        remedy="A current DeepSpeed; --num_extract_workers 1 --num_merge_workers 1; room for twice the checkpoint.",
        patches=(
            "universal_checkpoint_subgroups",
            "universal_checkpoint_weights_only",
            "universal_checkpoint_rank_order",
        ),
        evidence=(f"{_UNIVERSAL}: main",),
    ),
    Fact(
        id="frame_universal_loading",
        names=(
            "deepspeed/checkpoint/universal_checkpoint.py:load_hp_checkpoint_state",
            "deepspeed/runtime/base_optimizer.py:load_hp_checkpoint_state_from_checkpoint_dir",
            *("deepspeed/runtime/zero/stage3.py:load_hp_checkpoint_state_from_checkpoint_dir_stage3",),
            "deepspeed/runtime/zero/stage3.py:load_hp_checkpoint_state",
        ),
        title="a parameter is loaded from a universal checkpoint",
        what="For each parameter the directory zero/NAME with fp32.pt, exp_avg.pt and exp_avg_sq.pt is read. It fails "
        "where the directory is missing (another model, names with another prefix, a conversion that ended early), "
        "where sizes differ (vocabulary, tensor parallelism), or where the optimizer has other groups than at saving.",
        remedy="Convert again and look for errors of the workers; the same model, names and optimizer; a current "
        "DeepSpeed.",
        patches=(
            "universal_checkpoint_load_subgroups",
            "universal_checkpoint_param_groups",
            "universal_checkpoint_step",
        ),
        evidence=("deepspeed/checkpoint/universal_checkpoint.py: load_hp_checkpoint_state",),
    ),
    Fact(
        id="zero_to_fp32_reading",
        names=(f"{_FP32}:parse_optim_states", f"{_FP32}:parse_model_states", f"{_FP32}:get_checkpoint_files"),
        title="zero_to_fp32 reads the files of the ranks",
        what="It reads each file, before 0.16.0 into the memory. What fails here: files of some ranks that are "
        "missing or cut (a job that ended while saving, nodes that each have their own), files of an older save with "
        "more ranks in the same directory, torch 2.6's weights_only with the script's copy of an older DeepSpeed, or "
        "no memory.",
        remedy="Compare the number of *_optim_states.pt with the number of ranks; use the script of the installed "
        "DeepSpeed: python -m deepspeed.utils.zero_to_fp32.",
        patches=("zero_to_fp32_weights_only",),
        evidence=(f"{_FP32}: parse_optim_states",),
    ),
)
