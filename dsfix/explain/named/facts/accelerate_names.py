"""accelerate under DeepSpeed: the Accelerator's methods, and what they leave out."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="backward_of_accelerate",
        names=(
            "accelerator.backward",
            "DeepSpeedEngineWrapper",
            "optimizer.zero_grad",
            "DeepSpeedOptimizerWrapper",
        ),
        beside=(
            "gradients",
            "several models",
            "steps",
            "accumulation",
            "differs",
        ),
        title="accelerate: backward makes the optimizer's step, too",
        what="With DeepSpeed accelerator.backward calls the engine's backward and, at the end of an "
        "accumulation, its step, scheduler included; optimizer.step and zero_grad do nothing. Two "
        "backward calls for one step are two steps (with ZeRO-2 and 3 an error may follow), and gradients "
        "cannot be read or changed between backward and step.",
        remedy="One backward of the sum of the losses; clipping by gradient_clipping of the config; own loops "
        "over model.backward and model.step of the engine for anything else.",
        evidence=("accelerate.utils.deepspeed.DeepSpeedEngineWrapper",),
    ),
    Fact(
        id="accumulation_by_accelerate",
        names=("accelerator.accumulate", "sync_gradients", "accelerator.no_sync", "GradientAccumulationPlugin"),
        beside=(
            "accumulation + differs",
            "accumulation + loss",
            "accumulation + wrong",
            "accumulation + slow",
        ),
        title="accelerate: accumulation is counted by the engine",
        what="The config's gradient_accumulation_steps goes before the script's; the engine divides the loss by it "
        "and steps after as many backward calls. Before accelerate 1.8 accumulate() had no part in that, and the "
        "end of an epoch did not step; since then sync_gradients decides. ZeRO-2 and 3 reduce gradients in every "
        "backward, so that no_sync saves nothing (DeepSpeed 0.16 and later refuse it if an older accelerate calls "
        "it).",
        remedy='"gradient_accumulation_steps": "auto" in the config and the number once, in Accelerator(…) or '
        "TrainingArguments; no division of the loss by the script; accelerate 1.8 or later.",
        evidence=("accelerate.utils.deepspeed.DeepSpeedEngineWrapper.backward",),
    ),
    Fact(
        id="prepare_of_several_models",
        names=(
            "accelerator.prepare",
            "_prepare_deepspeed",
            "prepare_model",
            "accelerate/accelerator.py:_prepare_deepspeed",
            "select_deepspeed_plugin",
        ),
        beside=(
            "several models",
            "reference model",
            "rlhf",
            "ema",
        ),
        title="accelerate: one engine for each Accelerator",
        what="prepare takes one model with DeepSpeed, and backward always goes to the first engine. A second "
        "trained model needs a second Accelerator and a DeepSpeedPlugin of its own (accelerate 1.0 or "
        "later), a frozen one none of it with ZeRO-0 to 2.",
        remedy="Accelerator(deepspeed_plugins={…}), select_deepspeed_plugin(name) before each model is made; or "
        "both models in one nn.Module with one optimizer; frozen ones by model.to(accelerator.device), "
        "under ZeRO-3 by deepspeed.initialize (their from_pretrained has partitioned them).",
        evidence=("accelerate.Accelerator._prepare_deepspeed",),
    ),
    Fact(
        id="prepare_fills_config",
        names=(
            "accelerator.prepare",
            "is_train_batch_min",
            "deepspeed_config_process",
            "accelerate/utils/dataclasses.py:fill_match",
        ),
        beside=(
            "micro-batches",
            "fails + how",
        ),
        title='accelerate: what prepare puts in the place of "auto"',
        what="The batch size is that of the data loaders in the same call (the smallest one), so that they have to "
        "be passed with the model, and need a batch_size (not a batch sampler of their own). Scheduler and "
        "optimizer keys come from DummyOptim and DummyScheduler, bucket sizes from the model's config.hidden_size; "
        "gradient_clipping becomes 1.0.",
        remedy="All in one prepare(model, optimizer, loaders, scheduler); or a number for "
        '"train_micro_batch_size_per_gpu".',
        evidence=("accelerate.Accelerator._prepare_deepspeed",),
    ),
    Fact(
        id="scheduler_steps_of_accelerate",
        names=(
            "AcceleratedScheduler",
            "step_scheduler_with_optimizer",
            "split_batches",
            "accelerate/scheduler.py:step",
        ),
        beside=(
            "learning rate",
            "steps",
        ),
        title="accelerate: a prepared scheduler steps as often as there are processes",
        what="A torch scheduler that is prepared steps num_processes times for each step of the optimizer, as "
        "if the batches were divided: the rate falls too early if its length was counted in real steps. "
        "One from the DeepSpeed config is stepped by the engine, and scheduler.step() of the script does "
        "nothing; steps that fp16 skips do not count.",
        remedy="num_training_steps times accelerator.num_processes for a prepared one; or "
        "Accelerator(step_scheduler_with_optimizer=False); not the engine's and the script's together.",
        evidence=("accelerate.scheduler.AcceleratedScheduler.step",),
    ),
    Fact(
        id="dummies_of_accelerate",
        names=(
            "DummyOptim",
            "DummyScheduler",
        ),
        title="DummyOptim and DummyScheduler stand for sections of the config",
        what="They go with a section optimizer and a section scheduler (or lr_scheduler_callable), and only "
        "become real in accelerator.prepare with DeepSpeed. Without the section, with a real one beside "
        "it, or if DeepSpeed is not enabled (python instead of accelerate launch), prepare refuses them "
        "or they have no param_groups and no step.",
        remedy="Both dummies, or a real optimizer and no section; accelerate launch with the DeepSpeed config.",
        evidence=("accelerate.Accelerator._prepare_deepspeed",),
    ),
    Fact(
        id="optimizer_replaced_on_cpu",
        names=("map_pytorch_optim_to_deepspeed", "accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed"),
        title="accelerate puts DeepSpeedCPUAdam in the place of an optimizer that is offloaded",
        what="With offload_optimizer, prepare replaces the script's optimizer by DeepSpeedCPUAdam (Adagrad and "
        "32-bit Lion by theirs) with the same parameter groups; what is not AdamW, 8-bit AdamW included, becomes "
        "Adam with L2. It compiles an operator, which needs the CUDA toolkit and a compiler.",
        remedy='"zero_force_ds_cpu_optimizer": false in the config keeps the own one; or DeepSpeedCPUAdam made '
        "by the script; DS_SKIP_CUDA_CHECK=1 if only the minor version of CUDA differs.",
        evidence=("accelerate.utils.deepspeed.map_pytorch_optim_to_deepspeed",),
    ),
    Fact(
        id="gathering_in_evaluation",
        names=(
            "gather_for_metrics",
            "accelerator.gather",
            "pad_across_processes",
            "accelerate/utils/operations.py:_gpu_gather",
            "accelerate/utils/operations.py:_gpu_gather_one",
            "accelerate/utils/operations.py:pad_across_processes",
            "accelerate/utils/operations.py:_pad_across_processes",
        ),
        title="accelerate: tensors of all ranks are gathered",
        what="All ranks have to come here as often, with tensors on their GPU of equal shapes (else "
        "pad_across_processes first) and kinds. A hang means that a rank is elsewhere (another number of "
        "batches, `if main process`); an error of CUDA here is most likely of an earlier operation; each "
        "rank gets everything, which may not fit.",
        remedy="The same number of batches on all ranks; CUDA_LAUNCH_BLOCKING=1 to see the failing operation; "
        "metrics by parts instead of all logits.",
        evidence=("accelerate.utils.operations",),
    ),
    Fact(
        id="random_states_of_loader",
        names=(
            "synchronize_rng_states",
            "synchronize_rng_state",
            "dispatch_batches",
            "accelerate/utils/random.py:synchronize_rng_state",
            "accelerate/data_loader.py:_fetch_batches",
        ),
        title="accelerate: a prepared data loader begins an epoch",
        what="Its ranks first make their random states equal by a broadcast, or (dispatch_batches, the default "
        "for IterableDataset) rank 0 reads and sends every batch. Both are the first collectives after "
        "start: an error or a hang here is mostly of the connection, of a rank that is late, or of "
        "batches whose parts cannot be concatenated.",
        remedy="NCCL_DEBUG=INFO; the same code on all ranks before the loop; dispatch_batches=False with a "
        "dataset that is divided by the script; a newer accelerate.",
        evidence=("accelerate.data_loader.DataLoaderDispatcher",),
    ),
    Fact(
        id="memory_of_second_engine",
        names=(
            "free_memory",
            "release_memory",
            "accelerator.free_memory",
            "accelerator.clear",
        ),
        title="accelerate: memory of an engine is not given back",
        what="Hooks and buffers of an engine, and Python references to model, optimizer and loss, keep its memory; "
        "free_memory destroys the engine in accelerate 0.34 and later, not in 0.27. Several trainings in one "
        "process (a sweep, a search) grow by that.",
        remedy="One process for each training; else del model, optimizer; accelerator.free_memory(); "
        "engine.destroy(); gc.collect(); torch.cuda.empty_cache().",
        evidence=("accelerate.Accelerator.free_memory",),
    ),
)
