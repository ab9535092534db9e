"""transformers' Trainer under DeepSpeed: what it saves, and how it goes on from there."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="resuming_by_trainer",
        names=(
            "resume_from_checkpoint",
            "deepspeed_load_checkpoint",
            "get_last_checkpoint",
            "transformers/integrations/deepspeed.py:deepspeed_load_checkpoint",
            "transformers/deepspeed.py:deepspeed_load_checkpoint",
        ),
        beside=(
            "resuming + fails",
            "checkpoint + fails",
            "resuming + incomplete",
            "resuming + how",
            "resuming + number of ranks",
        ),
        title="transformers: what resume_from_checkpoint needs under DeepSpeed",
        what="The engine loads: the directory must have latest and global_step… with the partitions of all ranks, "
        "which save_only_model leaves out. The number of ranks (ZeRO), the stage, the optimizer and the trainable "
        "parameters have to be the same; on several nodes every node needs all files.",
        remedy="checkpoint-N of the same set-up; for another number of ranks a universal checkpoint "
        "(ds_to_universal.py); to go on from weights only from_pretrained(checkpoint-N) without resuming.",
        evidence=("transformers.integrations.deepspeed.deepspeed_load_checkpoint",),
    ),
    Fact(
        id="memory_of_resuming",
        names=("resume_from_checkpoint", "load_best_model_at_end", "load_state"),
        beside=(
            "resuming + oom",
            "resuming + host",
            "resuming + hang",
            "resuming + slow",
            "loading + hang + checkpoint",
        ),
        title="resuming takes more memory and time than starting",
        what="Each rank reads the file with the model's weights and its own partition of the optimizer into the "
        "host's memory, beside the model that was loaded before; then the Trainer skips the batches that were seen. "
        "Either looks like a hang, and the host's memory may not be enough for all ranks at once.",
        remedy="More host memory, or fewer ranks that load at once; ignore_data_skip=True to start the data anew.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._load_zero_checkpoint",),
    ),
    Fact(
        id="resuming_adapter_by_trainer",
        names=(
            "resume_from_checkpoint",
            "load_module_strict",
            "load_best_model_at_end",
        ),
        beside=(
            "adapter + resuming",
            "adapter + checkpoint",
            "adapter + fails",
        ),
        title="transformers: resuming an adapter with DeepSpeed",
        what="Since 4.37 the Trainer leaves the frozen weights out of the engine's checkpoint, and since 4.38 "
        "it loads it without strictness: 4.37 and before find the base weights missing in such a "
        "checkpoint. The base model has to be loaded by the script, and the adapter wrapped as before.",
        remedy="transformers 4.38 or later for saving and resuming; the same LoRA settings; the same number of ranks.",
        evidence=("transformers.Trainer._save_optimizer_and_scheduler",),
    ),
    Fact(
        id="best_model_at_end",
        names=(
            "load_best_model_at_end",
            "transformers/trainer.py:_load_best_model",
        ),
        beside=(
            "loading + oom",
            "loading + checkpoint",
            "loading + hang",
            "loading + differs",
            "loading + fails",
            "loading + host",
        ),
        title="load_best_model_at_end with DeepSpeed",
        what="At the end the engine loads the best checkpoint with its optimizer states, which needs the "
        "complete global_step… directory, the memory of resuming, and a shared file system on several "
        "nodes; it excludes save_only_model. It fails if save_total_limit or a callback has removed files "
        "of it.",
        remedy="load_best_model_at_end=False, and the weights of the best checkpoint-N are taken by "
        "from_pretrained or zero_to_fp32 afterwards.",
        evidence=("transformers.Trainer._load_best_model",),
    ),
    Fact(
        id="weights_only_checkpoints",
        names=(
            "save_only_model",
            "save_total_limit",
        ),
        beside=(
            "large",
            "resuming",
            "incomplete",
            "zero-3 + saving + how",
        ),
        title="transformers: how large checkpoints are under DeepSpeed",
        what="Each checkpoint-N has the weights and, in global_step…, the optimizer's partitions: some 12 "
        "bytes more for each trainable parameter. save_only_model leaves global_step… out, and then "
        "nothing can be resumed; if ZeRO-3 does not gather the weights, the engine's full checkpoint is "
        "written all the same.",
        remedy="save_only_model=True with stage3_gather_16bit_weights_on_model_save, if it is not to be resumed; "
        "save_total_limit=1, where a second one needs room while it is written.",
        evidence=("transformers.Trainer._save_checkpoint",),
    ),
    Fact(
        id="save_model_of_trainer",
        names=(
            "trainer.save_model",
            "save_model",
            "safe_save_model_for_hf_trainer",
            "trainer_save_model_safe",
            "_save_checkpoint",
            "_save",
            "transformers/trainer.py:save_model",
            "transformers/trainer.py:_save",
        ),
        beside=(
            "saving + empty",
            "saving + incomplete",
            "saving + hang",
            "saving + oom",
            "saving + zero-3",
            "saving + fails",
            "saving + slow",
            "loading + fails",
        ),
        title="transformers: save_model under DeepSpeed",
        what="All ranks have to call it. Under ZeRO-3 it writes whole weights (gathered into the memory of "
        "rank 0) only if stage3_gather_16bit_weights_on_model_save is true, otherwise config, tokenizer "
        "and the engine's partitions. model.save_pretrained, or a state_dict() of the model, has empty "
        "weights there.",
        remedy='"stage3_gather_16bit_weights_on_model_save": true, or zero_to_fp32.py; trainer.save_model() on '
        "all ranks, not under `if rank == 0`; own Trainers: accelerator.get_state_dict(self.deepspeed).",
        evidence=("transformers.Trainer.save_model",),
    ),
    Fact(
        id="states_beside_engine",
        names=(
            "_load_rng_state",
            "transformers/trainer.py:_load_rng_state",
            "transformers/trainer.py:_load_optimizer_and_scheduler",
            "transformers/trainer.py:_load_scaler",
        ),
        title="transformers: what the Trainer restores beside the engine",
        what="rng_state_RANK.pth of every rank, scheduler.pt unless the scheduler is DeepSpeed's, "
        "trainer_state.json. It fails if the checkpoint is of another number of ranks or another kind of "
        "scheduler, if the nodes do not share it, or if torch 2.6 refuses pickled numpy states that an "
        "old transformers reads.",
        remedy="The same set-up as the one that saved; a newer transformers; rng_state files may be removed (random "
        "numbers differ then).",
        evidence=("transformers.Trainer._load_rng_state",),
    ),
    Fact(
        id="files_beside_engine",
        names=("scheduler.pt", "rng_state"),
        beside=("resuming", "loading", "fails"),
        title="transformers: files of a checkpoint that the Trainer restores",
        what="rng_state_RANK.pth of every rank, scheduler.pt unless the scheduler is DeepSpeed's, "
        "trainer_state.json. It fails if the checkpoint is of another number of ranks or another kind of "
        "scheduler, if the nodes do not share it, or if torch 2.6 refuses pickled numpy states that an "
        "old transformers reads.",
        remedy="The same set-up as the one that saved; a newer transformers; rng_state files may be removed (random "
        "numbers differ then).",
        evidence=("transformers.Trainer._load_rng_state",),
    ),
    Fact(
        id="writing_engine_checkpoint",
        names=(
            "transformers/trainer.py:_save_optimizer_and_scheduler",
            "transformers/trainer.py:_save_checkpoint",
        ),
        title="transformers: a checkpoint is written by the engine",
        what="Every rank writes its partitions at the same time. Most likely an error here is of the disk "
        "(full, quota, no right, several nodes without a shared directory); a hang is a rank that has "
        "left, or rank 0 that writes for long; with PEFT frozen parameters that DeepSpeed does not find "
        "by name.",
        remedy="df -h on all nodes; room for some 14 bytes for each parameter; save_only_model, if nothing is resumed.",
        evidence=("transformers.Trainer._save_optimizer_and_scheduler",),
    ),
)
