"""Batch sizes, accumulation and clipping in the config."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_batch_sizes",
        names=(
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "micro_batch_per_gpu",
            "micro_batch_size_per_gpu",
        ),
        beside=(
            "fails",
            "how",
            "differs",
            "number of ranks",
            "wrong",
            "micro-batches",
            "accumulation",
        ),
        title="train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks",
        what="train_batch_size or train_micro_batch_size_per_gpu is enough, and the rest follows; with all three the "
        "product must hold for the data-parallel ranks (ranks divided by tensor, pipeline and sequence parallelism). "
        "DeepSpeed does not batch the script's own DataLoader: its batch_size is train_micro_batch_size_per_gpu. If "
        "the world size is read as 1, the process group was not initialized, or each process runs alone.",
        remedy='Leave out train_batch_size; "auto" for all three with the Trainer (per_device_train_batch_size '
        "counts); a number for train_micro_batch_size_per_gpu where accelerate gets no DataLoader, or one with a "
        "batch_sampler.",
        evidence=("deepspeed.runtime.config.DeepSpeedConfig._set_batch_related_parameters",),
    ),
    Fact(
        id="at_batch_assertion",
        names=(
            "deepspeed/runtime/config.py:_batch_assertion",
            "deepspeed/runtime/config.py:_configure_train_batch_size",
            "deepspeed/runtime/config.py:_set_batch_related_parameters",
        ),
        title="the batch sizes of the config contradict each other, or are missing",
        what="Most likely the number of ranks is not the one the config was written for, is counted as 1 (a config "
        "that is read before the process group exists, plain python instead of a launcher), is divided by tensor or "
        'sequence parallelism, or a value is still "auto" (TypeError: str and int), as only the Trainer and accelerate '
        "fill it in.",
        remedy="train_micro_batch_size_per_gpu and gradient_accumulation_steps as numbers, without train_batch_size; "
        "a launcher (deepspeed, torchrun, accelerate launch).",
        evidence=("deepspeed.runtime.config.DeepSpeedConfig._batch_assertion",),
    ),
    Fact(
        id="accumulation_and_loss",
        names=(
            "gradient_accumulation_steps",
            "gradient_accumulation_step",
            "grad_accum",
            "accumulate_grad_batches",
        ),
        beside=(
            "loss",
            "gradients + differs",
            "metric + differs",
            "results + differs",
            "baseline + differs",
            "nan",
            "not falling",
        ),
        title="gradient_accumulation_steps: the loss, and gradients that are lost",
        what="engine.backward divides the loss by it, and returns the divided one: a script that divides as well, or "
        "transformers' num_items_in_batch of some releases, makes loss and gradients wrong by that factor. Averages "
        "of micro-batches differ from one large batch where their numbers of tokens differ. ZeRO-2 of 0.17.6 to "
        "0.18.2 uses the last micro-batch only, with offload 0.15.2 to 0.18.9 the first and the last.",
        remedy="Do not divide in the script (or backward(loss, scale_wrt_gas=False)); DeepSpeed 0.19.0 or later, or "
        "dsfix's patches; compare sums of tokens rather than means.",
        patches=(
            "zero2_accumulation_drops_microbatches",
            "zero2_offload_accumulation_drops",
            "scale_wrt_gas_ignored",
        ),
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/7718",
            "deepspeed.runtime.engine.DeepSpeedEngine.backward",
        ),
    ),
    Fact(
        id="accumulation_and_steps",
        names=(
            "gradient_accumulation_steps",
            "gradient_accumulation_step",
            "accumulate_grad_batches",
        ),
        beside=(
            "steps",
            "learning rate",
            "how",
            "unused",
        ),
        title="gradient_accumulation_steps: engine.step() belongs to each micro-batch",
        what="The engine counts micro-batches in step(): it updates the weights, the scheduler and global_steps at "
        "every gradient_accumulation_steps-th call only. A script that calls step() once per accumulation updates that "
        "many times too rarely. accelerate and the Trainer set the number from their own arguments; one in the config "
        "that differs is refused or replaced.",
        remedy="No condition around engine.step(); total steps = batches / gradient_accumulation_steps; "
        'accelerator.accumulate(model) and the number given to Accelerator; "auto" in the config.',
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.is_gradient_accumulation_boundary",),
    ),
    Fact(
        id="accumulation_and_cost",
        names=(
            "gradient_accumulation_steps",
            "gradient_accumulation_step",
            "accumulate_grad_batches",
        ),
        beside=(
            "slow",
            "oom",
            "memory",
            "lower",
        ),
        title="gradient_accumulation_steps: what it costs with each stage",
        what="ZeRO-2 and 3 reduce gradients in every micro-batch, and ZeRO-3 gathers the weights again for each: "
        "accumulation saves only the steps (of use with offload). ZeRO-0 and 1 communicate at the boundary only, and "
        "keep all gradients until then, ZeRO-2 and 3 a part per rank.",
        remedy="Larger micro-batches rather than more accumulation; ZeRO-1 on slow connections if it fits; no_sync "
        "is not for ZeRO-2 and 3.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.allreduce_gradients",),
    ),
    Fact(
        id="of_managed_gradient_accumulation",
        names=("managed_gradient_accumulation",),
        title="managed_gradient_accumulation: the script decides when to step",
        what="Since 0.19.4. With false, backward only accumulates and step() always updates; "
        "gradient_accumulation_steps still scales the loss. Pipelines, DeepCompile, "
        "set_gradient_accumulation_boundary, coalesce_grad_reduction, and overlap_comm with ZeRO-1 or without ZeRO, "
        "do not go with it.",
        remedy="Leave it true (the default) unless the number of micro-batches varies.",
        affects={"deepspeed": ">=0.19.4"},
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine",),
    ),
    Fact(
        id="of_gradient_clipping",
        names=(
            "gradient_clipping",
            "max_grad_norm",
            "gradient_clip_val",
        ),
        beside=(
            "gradients",
            "nan",
            "not falling",
            "wrong",
            "unused",
        ),
        title="gradient_clipping: only DeepSpeed's own key clips",
        what='A top-level key, 0 (none) by default; the Trainer fills "auto" with max_grad_norm, which alone does not '
        "reach DeepSpeed and is refused among the optimizer's params. The norm that is logged is the one before "
        "clipping. fp32 without ZeRO clips wrongly in 0.13.2; ZeRO-3 with offload fails in 0.14.1 and 0.14.2.",
        remedy='"gradient_clipping": 1.0 in the DeepSpeed config (Lightning: gradient_clip_val); '
        "engine.get_global_grad_norm() after step.",
        patches=(
            "fp32_clipping_inverted",
            "zero3_offload_clip_device",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._take_model_step",),
    ),
    Fact(
        id="of_dataloader_drop_last",
        names=(
            "dataloader_drop_last",
            "drop_last",
        ),
        beside=(
            "fails",
            "hang",
            "differs",
            "padding",
            "pipeline",
            "steps",
        ),
        title="dataloader_drop_last: for the loader that DeepSpeed makes only",
        what="The key (false by default) counts for training_data given to deepspeed.initialize, not for a "
        "DataLoader of the script or the Trainer. A smaller last batch breaks pipelines (shapes are fixed), compiled "
        "graphs and code that needs the same number of batches on all ranks, which otherwise hangs.",
        remedy='"dataloader_drop_last": true in the config for DeepSpeed\'s loader; drop_last=True and a '
        "DistributedSampler in the script's own.",
        evidence=("deepspeed.runtime.dataloader.DeepSpeedDataLoader",),
    ),
    Fact(
        id="of_steps_per_print",
        names=(
            "steps_per_print",
            "_report_progress",
        ),
        title="steps_per_print: how often DeepSpeed logs, and what it does not log",
        what="Every so many steps rank 0 logs step, skipped, lr and mom, and the throughput; it does not log the "
        "loss outside of pipelines. The default is 10, and since 0.15.2 none (nothing is logged): pipelines without "
        "the key fail in 0.15.2 to 0.16.4, and with wall_clock_breakdown since. inf of accelerate switches it off.",
        remedy='A number, as "steps_per_print": 100; log the loss in the script.',
        patches=(
            "pipeline_steps_per_print",
            "pipeline_steps_per_print_timers",
        ),
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._report_progress",),
    ),
)
