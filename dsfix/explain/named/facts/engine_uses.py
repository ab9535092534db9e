"""What scripts do beside DeepSpeed's engine, as they would without it: clipping, schedulers, gradients, data."""

from __future__ import annotations

from ..fact import Fact

_ENGINE = "deepspeed/runtime/engine.py"

FACTS = (
    Fact(
        id="engine_no_sync",
        names=("no_sync",),
        title="no_sync and DeepSpeed",
        what="The engine has it since 0.16.0, for ZeRO-0 and 1 only: ZeRO-2 and 3 have to reduce the gradients of "
        "every micro-batch and raise an AssertionError, as do engine.step() inside of it and a no_sync within another "
        "one. Before 0.16.0 frameworks that ask for it found none and went on.",
        remedy="None is needed: gradient_accumulation_steps in the config, and engine.backward and engine.step for "
        "each micro-batch. transformers 4.47.1, accelerate 1.9.0 or later.",
        patches=("no_sync_incompatible",),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.no_sync",),
    ),
    Fact(
        id="torch_clipping_beside_engine",
        names=("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"),
        title="torch's clipping has no effect under ZeRO",
        what="With ZeRO the gradients are moved into partitions in the backward pass, so that param.grad is None or "
        "not what the optimizer takes: torch.nn.utils.clip_grad_norm_ clips nothing. DeepSpeed clips by the global "
        "norm in engine.step(), if gradient_clipping is in its config, and cannot clip by value.",
        remedy='"gradient_clipping": 1.0 (or "auto" with transformers and max_grad_norm); the norm: '
        "engine.get_global_grad_norm() after the step.",
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: unscale_and_clip_grads",),
    ),
    Fact(
        id="global_grad_norm",
        names=("get_global_grad_norm", "_global_grad_norm", "grad_norm"),
        title="the gradients' norm with DeepSpeed",
        what="engine.get_global_grad_norm() returns the norm of the last update, before clipping, without the loss "
        "scale (fp16 without ZeRO and FusedAdam: with it); it is None before the first one, and for fp32 or "
        "torch_autocast without ZeRO. A norm that is computed from param.grad is of a part of the gradients, or 0. "
        "After a skipped step it is the one before, since 0.19.8 inf.",
        remedy="Read it after engine.step(), on all ranks.",
        beside=("gradients + none", "gradients + how", "gradients + differs", "gradients + wrong"),
        patches=("fp16_unfused_norm_scaled",),
        evidence=(f"{_ENGINE}: DeepSpeedEngine._take_model_step",),
    ),
    Fact(
        id="zero_grad_of_engine",
        names=("zero_grad", "engine.zero_grad", "optimizer.zero_grad"),
        title="zero_grad with DeepSpeed",
        what="engine.step() clears the gradients itself, at the boundary of accumulation. engine.zero_grad() sets "
        "param.grad to None and leaves what ZeRO has already reduced into its partitions, so that it does not "
        "reliably undo a backward pass. accelerate's optimizer.zero_grad() does nothing.",
        remedy="Leave it out. To drop a batch, skip its backward pass, on all ranks.",
        beside=("accumulation", "gradients + how", "gradients + wrong", "gradients + none", "gradients + differs"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.zero_grad, _take_model_step",),
    ),
    Fact(
        id="gradients_of_parameters",
        names=("param.grad", "p.grad", "parameter.grad", "params.grad", "weight.grad"),
        title="param.grad is None under ZeRO",
        what="ZeRO reduces each gradient into partitions of the ranks and clears param.grad, in the backward pass "
        "(ZeRO-1: in the last one before an update); without ZeRO it holds the gradient until the step, in fp16 times "
        "the loss scale. That it is None does not mean that nothing is trained.",
        remedy="deepspeed.utils.safe_get_full_grad(param), on all ranks, after engine.backward and before "
        "engine.step; to change it safe_set_full_grad (0.15.3 and later).",
        evidence=("https://deepspeed.readthedocs.io/en/latest/zero3.html", "deepspeed/utils/tensor_fragment.py"),
    ),
    Fact(
        id="requires_grad_after_initialize",
        names=("requires_grad", "requires_grad_"),
        title="requires_grad that changes after deepspeed.initialize",
        what="ZeRO divides the parameters that require gradients when the engine is made: one that is unfrozen later "
        "is in no partition and is never updated, and its gradient stays in memory. One that is frozen later keeps "
        "its place: Adam goes on to move it by its momentum and weight decay. Before 0.19.1, without ZeRO, weight "
        "decay moves any frozen parameter of the optimizer (fp16; bf16 since 0.17.6).",
        remedy="Make another engine after the change, from a checkpoint. To train a part at times: leave "
        "requires_grad, and set its group's lr to 0.",
        beside=("frozen + changing", "frozen + how", "frozen + fails", "frozen + memory"),
        patches=("frozen_parameters_decayed",),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: DeepSpeedZeroOptimizer.__init__",),
    ),
    Fact(
        id="gradscaler_beside_engine",
        names=("GradScaler", "scaler.scale", "scaler.step", "scaler.unscale_"),
        title="torch's GradScaler is not used with DeepSpeed",
        what="With fp16 enabled the engine scales the loss in engine.backward and skips steps with an overflow "
        "itself. A GradScaler of the script scales twice, and its unscale_ and step do not know the optimizer of ZeRO.",
        remedy="Remove it: engine.backward(loss) and engine.step(). Without ZeRO and with torch_autocast the engine "
        "has its own.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine.backward",),
    ),
    Fact(
        id="scheduler_stepped_by_engine",
        names=("lr_scheduler.step", "scheduler.step"),
        title="engine.step() also steps the scheduler",
        what="A scheduler of the config, or passed to deepspeed.initialize, is stepped by engine.step(), after the "
        "update, once per update and not after an fp16 overflow. A script that steps it, too, runs through it twice "
        "as fast. accelerate steps a scheduler of the script as many times per update as there are processes, unless "
        "split_batches is set.",
        remedy="Leave the call out, or do not pass lr_scheduler and step it oneself, e.g. once per epoch.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine._take_model_step",),
    ),
    Fact(
        id="param_groups_of_engine",
        names=("optimizer.param_groups", "param_groups", "optimizer.state"),
        title="what optimizer.param_groups holds after deepspeed.initialize",
        what="With ZeRO-1/2 the parameters of the groups have been replaced by flat fp32 partitions of this rank, "
        "with ZeRO-3 the groups have none outside of step(); optimizer.state has the partitions as keys: names and "
        "shapes of the model's parameters are not in it. Groups without parameters are removed. lr and weight_decay "
        "of a group can be read and set as ever.",
        remedy="For states by parameter: deepspeed.utils.safe_get_full_optimizer_state(param, 'exp_avg'). Add groups "
        "before deepspeed.initialize; ZeRO's optimizer has no add_param_group.",
        beside=("learning rate", "empty", "parameters"),
        patches=("empty_group_scheduler",),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: DeepSpeedZeroOptimizer.__init__",),
    ),
    Fact(
        id="optimizer_step_of_script",
        names=("optimizer.step", "optim.step"),
        title="optimizer.step() beside engine.step()",
        what="engine.step() calls the optimizer's step, at the boundary of accumulation, clears gradients, steps the "
        "scheduler and counts. optimizer.step() of the script updates at once and leaves the rest out, or updates "
        "twice; with accelerate it does nothing, as accelerator.backward has already called engine.step().",
        remedy="engine.backward and engine.step only; with accelerate leave its calls as they are.",
        beside=(
            "accumulation + how",
            "accumulation + wrong",
            "accumulation + differs",
            "accumulation + loss",
            "steps + wrong",
            "steps + how",
            "steps + differs",
            "not falling",
        ),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.step", "accelerate/utils/deepspeed.py: DeepSpeedOptimizerWrapper"),
    ),
    Fact(
        id="evaluation_with_engine",
        names=("engine.eval", "model_engine.eval", "model.eval", "engine.train"),
        title="evaluating with a DeepSpeed engine",
        what="engine.eval() only sets the mode of the module. With ZeRO-3 every forward pass communicates: all ranks "
        "have to run the same number of them, with a last batch for each, and through the engine. Memory for "
        "gradients and states stays taken, and a larger evaluation batch or kept outputs come on top.",
        remedy="torch.no_grad(), the same number of batches on all ranks (a DistributedSampler, drop_last), outputs "
        "moved to the host; evaluation on rank 0 alone only up to ZeRO-2, on the bare module.",
        beside=("evaluation + hang", "evaluation + oom", "evaluation + how", "evaluation + memory"),
        patches=("zero3_no_grad_call_keeps_gathered", "zero3_eval_mode_backward"),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.eval",),
    ),
    Fact(
        id="batch_size_set_on_engine",
        names=("set_train_batch_size", "set_train_micro_batch_size"),
        title="changing the batch size of a running engine",
        what="set_train_batch_size changes gradient_accumulation_steps, and needs a multiple of micro-batch size * "
        "data-parallel ranks; set_train_micro_batch_size only what the engine believes. Neither changes a data "
        "loader, a scheduler or the learning rate.",
        remedy="Call it on all ranks between two updates, and make the data loader anew.",
        evidence=(f"{_ENGINE}: DeepSpeedEngine.set_train_batch_size",),
    ),
    Fact(
        id="dataloader_of_engine",
        names=(
            "training_data",
            "training_dataloader",
            "deepspeed_io",
            f"{_ENGINE}:deepspeed_io",
            "DeepSpeedDataLoader",
        ),
        title="the data loader that the engine makes from training_data",
        what="It has train_micro_batch_size_per_gpu samples per batch, a DistributedSampler over the ranks, two "
        "workers and pinned memory, and needs a dataset with __len__ and __getitem__: an IterableDataset fails. "
        "Nothing calls set_epoch: each epoch has the same order.",
        remedy="Give deepspeed.initialize no training_data, and use a DataLoader of one's own with a "
        "DistributedSampler and the micro-batch size.",
        evidence=("deepspeed/runtime/dataloader.py: DeepSpeedDataLoader",),
    ),
    Fact(
        id="offload_states_limits",
        names=("offload_states", "reload_states"),
        title="engine.offload_states and reload_states",
        what="For ZeRO-3 since 0.15.2, for ZeRO-1 and 2 since 0.17.6. With ZeRO-3 the optimizer has to be DeepSpeed's "
        "FusedAdam (with offload_optimizer its states are left out since 0.19.0), and offload_param excludes it. "
        "Pinned host memory of the same size is taken and kept; torch's cache on the GPU is emptied, but a process "
        "keeps its CUDA context.",
        remedy="reload_states() before the next forward, save or load. pin_memory=False if the host is short.",
        patches=("zero3_offload_states_frozen", "zero3_reload_states_groups"),
        evidence=("deepspeed/runtime/zero/stage3.py: offload_states",),
    ),
    Fact(
        id="engine_destroy",
        names=("engine.destroy", "model_engine.destroy"),
        title="releasing a DeepSpeed engine",
        what="destroy() removes the hooks of the optimizer and what it links; memory is freed only when no reference "
        "to engine, model, optimizer and scheduler is left. Before 0.13.0 a table of names keeps the model until "
        "another engine is made. Process groups and the CUDA context stay until the process ends.",
        remedy="engine.destroy(), del all names, gc.collect(), torch.cuda.empty_cache(). Surely: a process of its own "
        "for each engine.",
        patches=("engine_names_keep_model",),
        evidence=(f"{_ENGINE}: DeepSpeedEngine.destroy",),
    ),
    Fact(
        id="memory_report",
        names=("see_memory_usage",),
        title="see_memory_usage: what its numbers are",
        what="MA is what torch has allocated now, Max_MA its peak since the last report, CA and Max_CA what torch's "
        "cache has reserved. nvidia-smi shows CA and the CUDA context. The CPU memory is of the whole host and not of "
        "the process. Calls with force=False print nothing.",
        remedy="memory_breakdown in the config prints it around forward, backward and step.",
        evidence=("deepspeed/runtime/utils.py: see_memory_usage",),
    ),
)
