"""Saving and loading by DeepSpeed's engine, and the converters of its checkpoints."""

from __future__ import annotations

from ..fact import Fact

_ENGINE = "deepspeed/runtime/engine.py"

FACTS = (
    Fact(
        id="save_checkpoint_on_all_ranks",
        names=("save_checkpoint", "engine.save_checkpoint", f"{_ENGINE}:save_checkpoint"),
        title="engine.save_checkpoint: all ranks have to call it",
        what="Every rank writes its part of the optimizer and meets the others in barriers: inside `if rank == 0`, or "
        "with one rank that failed, the others wait until the timeout. The barriers of the same call wait for the "
        "slowest disk as well; a full disk or host memory that ends on one rank looks like a hang on the others.",
        remedy="Call it on all ranks, with the same tag. DEEPSPEED_TIMEOUT (minutes) for slow storage.",
        beside=(
            "saving + hang",
            "checkpoint + hang",
            "saving + connection",
            "checkpoint + connection",
            "saving + incomplete",
            "checkpoint + incomplete",
            "saving + ends",
        ),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.save_checkpoint",),
    ),
    Fact(
        id="save_checkpoint_size",
        names=("save_checkpoint", "engine.save_checkpoint", "mp_rank_00_model_states", "global_step"),
        title="the size of a DeepSpeed checkpoint",
        what="With Adam and 16 bits it has about 14 bytes per trained parameter: the weights (2), and in the files "
        "optim_states of all ranks their fp32 copy (4) and two states (8). Frameworks save the weights once more. "
        "Each global_step… directory is complete by itself; DeepSpeed deletes none.",
        remedy="Save less often, delete old ones (transformers: save_total_limit; save_only_model=True, which leaves "
        "global_step… out, if nothing is to be resumed), exclude_frozen_parameters=True for adapters.",
        beside=("saving + large", "saving + slow", "checkpoint + large"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._save_checkpoint, _save_zero_checkpoint",),
    ),
    Fact(
        id="save_checkpoint_memory",
        names=("save_checkpoint", "engine.save_checkpoint", f"{_ENGINE}:_save_zero_checkpoint"),
        title="memory while engine.save_checkpoint runs",
        what="All ranks write at once, and torch.save copies each tensor that is on the GPU to the host first, so "
        "that many ranks on one host take much of it. Frameworks save the weights besides: with ZeRO-3 they are "
        "gathered into the host memory of rank 0, otherwise cloned, through 0.15 on the GPU. The page cache of "
        "written files shows as used and is given back.",
        remedy="More host memory, or fewer ranks per host; save the weights only at the end (zero_to_fp32.py makes "
        "them from a checkpoint).",
        beside=(
            "saving + oom",
            "saving + memory",
            "saving + host",
            "checkpoint + oom",
            "checkpoint + host",
            "checkpoint + grows",
        ),
        patches=("saving_copies_on_gpu",),
        evidence=("deepspeed/checkpoint/utils.py: clone_tensors_for_torch_save",),
    ),
    Fact(
        id="load_checkpoint_finds_nothing",
        names=("load_checkpoint", "engine.load_checkpoint", "load_path"),
        title="engine.load_checkpoint returns None without an error",
        what="It returns (None, None) where load_dir has no file `latest` and no tag was given: load_dir is the "
        "parent of global_step…, not that directory. Training then goes on from the model as it is. The ranks' files "
        "have to be visible on every node.",
        remedy="Check that the returned path is not None. load_checkpoint(parent, tag='global_step100').",
        beside=("loading + none", "loading + fails", "resuming", "loading + nodes"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.load_checkpoint",),
    ),
    Fact(
        id="load_checkpoint_ranks",
        names=(
            *("load_checkpoint", "engine.load_checkpoint", f"{_ENGINE}:_load_zero_checkpoint"),
            *("_load_zero_checkpoint", "_get_all_zero_checkpoints"),
        ),
        title="engine.load_checkpoint needs the set-up that saved",
        what="The optimizer's partitions fit the same stage of ZeRO, number of data-parallel ranks, parameter groups "
        "and order of parameters only. Weights alone can be loaded by other set-ups; for the states a universal "
        "checkpoint is needed.",
        remedy="ds_to_universal.py and load_universal; or the weights alone: load_checkpoint(…, "
        "load_optimizer_states=False, load_lr_scheduler_states=False), with ZeRO-3 and other ranks zero_to_fp32.py "
        "before deepspeed.initialize.",
        beside=("number of ranks", "zero-2 + zero-3", "loading + differs", "resuming + fails"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._load_zero_checkpoint",),
    ),
    Fact(
        id="load_without_optimizer",
        names=("load_optimizer_states", "load_module_only", "load_lr_scheduler_states"),
        title="load_checkpoint: load_optimizer_states and load_module_only",
        what="load_module_only leaves out optimizer, scheduler and counters; with ZeRO-3 since 0.13.0 it loads no "
        "trained weights at all, as they are in the optimizer's files. load_optimizer_states=False still loads "
        "counters and scheduler; the fp32 weights are made from the 16-bit ones (0.12: the next step undoes it); with "
        "ZeRO-3 each rank builds the whole fp32 model in host memory, from the tag in `latest`.",
        remedy="load_optimizer_states=False, load_lr_scheduler_states=False for the weights, also with ZeRO-3.",
        patches=(
            *("zero3_load_of_another_tag", "zero_load_without_optimizer", "stage0_load_without_optimizer"),
            "zero3_load_module_only_unsaid",
        ),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._load_checkpoint",),
    ),
    Fact(
        id="load_module_strictly",
        names=("load_module_strict", f"{_ENGINE}:load_module_state_dict"),
        title="load_checkpoint compares the names of all weights",
        what="load_module_strict=True, the default, raises where the checkpoint has fewer or more names than the "
        "model: frozen weights that were left out, an adapter that is not attached yet, torch.compile's or a "
        "wrapper's prefix, another transformers. With False names that do not match keep their values, without a "
        "word; other sizes still fail.",
        remedy="Build the model as at saving, adapter included; load_module_strict=False if only frozen weights are "
        "missing, after these have been loaded from the base model.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine.load_module_state_dict",),
    ),
    Fact(
        id="excluding_frozen_parameters",
        names=("exclude_frozen_parameters",),
        title="exclude_frozen_parameters",
        what="save_checkpoint has it since 0.10.1, save_16bit_model since 0.13.2: frozen weights are left out of the "
        "model's files, and load_checkpoint then needs load_module_strict=False. Frozen weights are in no optimizer "
        "file; zero_to_fp32 finds them with ZeRO-2 and 3 only, as ZeRO-1 records none.",
        remedy="Load the base model first, then the checkpoint with load_module_strict=False.",
        patches=("zero1_to_fp32_leaves_out_frozen",),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._save_checkpoint",),
    ),
    Fact(
        id="saving_16bit_model",
        names=("save_16bit_model", "save_fp16_model", "_zero3_consolidated_16bit_state_dict"),
        title="engine.save_16bit_model",
        what="All ranks have to call it; rank 0 writes one pytorch_model.bin in the engine's dtype, without a config. "
        "With ZeRO-3 it writes nothing and returns False unless stage3_gather_16bit_weights_on_model_save is true; "
        "then each layer is gathered in turn, and the model has to fit into rank 0's host memory. With tensor "
        "parallelism of the model's own only rank 0's share is written.",
        remedy="Set the option and call it outside of `if rank == 0`; or save_checkpoint and zero_to_fp32.py.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine.save_16bit_model",),
    ),
    Fact(
        id="client_state_argument",
        names=("client_state", "client_states", "client_sd"),
        title="client_state of save_checkpoint and load_checkpoint",
        what="It is added to the model's file by each rank that writes one, which is one of the data-parallel ranks "
        "up to ZeRO-2: values that differ by rank (random states, a sampler) are lost. Keys such as module, optimizer "
        "or lr_scheduler overwrite DeepSpeed's own. load_checkpoint returns it second, with other keys of the "
        "checkpoint.",
        remedy="Own names for the keys, small picklable values, and a file of one's own for what differs by rank.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine._save_checkpoint",),
    ),
    Fact(
        id="files_of_checkpoint",
        names=(
            *("mp_rank_00_model_states", "zero_pp_rank_0_mp_rank_00_optim_states", "optim_states", "model_states"),
            *("zero_pp_rank_0_mp_rank_00_model_states", "bf16_zero_pp_rank_0_mp_rank_00_optim_states"),
        ),
        title="the files of a DeepSpeed checkpoint",
        what="mp_rank_XX_model_states.pt has the model's 16-bit weights up to ZeRO-2; with ZeRO-3 the files "
        "zero_pp_rank_N_…_model_states.pt have placeholders instead. …_optim_states.pt has rank N's part of the fp32 "
        "weights and states: all are needed, also for zero_to_fp32. None is a file for from_pretrained.",
        remedy="`python zero_to_fp32.py . OUTPUT` in the directory that has `latest`. Without ZeRO-3: the key module "
        "of mp_rank_00_model_states.pt.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine._get_ckpt_name, _get_zero_ckpt_name",),
    ),
)
