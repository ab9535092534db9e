"""Lightning's and Fabric's DeepSpeed strategy: its arguments, hooks and checkpoints."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="lightning_strategy_arguments",
        names=("DeepSpeedStrategy", "PL_DEEPSPEED_CONFIG_PATH", "logging_batch_size_per_gpu"),
        beside=(
            "offload",
            "unused",
            *("zero-2 + differs", "zero-3 + differs", "micro-batches + differs", "accumulation + differs"),
            "memory",
            "oom",
        ),
        title="Lightning: what DeepSpeedStrategy's arguments do beside a config",
        what="If a config is given (or PL_DEEPSPEED_CONFIG_PATH is set), all other arguments for it are "
        "ignored, stage and offload included. Accumulation must not be in it; clipping, batch size and "
        "precision are added by Lightning. The default is stage 2 without offload.",
        remedy="Either arguments or one complete config; trainer.strategy.config shows what is used.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy.__init__",),
    ),
    Fact(
        id="lightning_partitioned_model",
        names=(
            "configure_model",
            "configure_sharded_model",
        ),
        title="Lightning: layers have to be made in configure_model for ZeRO-3",
        what="Only what configure_model makes (2.1 on; configure_sharded_model before) is partitioned while it "
        "is made; what __init__ makes is whole on each rank until fit starts. The hook runs again for "
        "validate and test, so it has to return if the model exists. Weights cannot be loaded inside by "
        "load_state_dict (shape [0]).",
        remedy="if self.model is not None: return; from_pretrained in it only with HfDeepSpeedConfig alive "
        "before; own weights within deepspeed.zero.GatheredParameters(…, modifier_rank=0), or in __init__ "
        "with ZeRO-2.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy.model_sharded_context",),
    ),
    Fact(
        id="lightning_offload_optimizer",
        names=(
            "deepspeed_stage_1_offload",
            "deepspeed_stage_2_offload",
            "deepspeed_stage_3_offload",
            "deepspeed_stage_3_offload_nvme",
            "offload_parameters",
        ),
        title="Lightning: the strategies with offload",
        what="The optimizer of configure_optimizers runs on the CPU. DeepSpeed wants DeepSpeedCPUAdam there, "
        "which compiles an operator; torch's AdamW is refused, or slow, and FusedAdam fails on the CPU. "
        "Each step moves gradients and weights; stage_3_offload offloads the parameters as well; there is "
        "no string for stage 1 with offload.",
        remedy="from deepspeed.ops.adam import DeepSpeedCPUAdam in configure_optimizers; offload only what does "
        "not fit; deepspeed_stage_2 if it fits.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy",),
    ),
    Fact(
        id="lightning_manual_optimization",
        names=(
            "manual_backward",
            "automatic_optimization",
            "toggle_optimizer",
        ),
        title="Lightning: manual optimization with DeepSpeed",
        what="There is one engine with one optimizer: manual_backward is engine.backward, and optimizer.step() "
        "of Lightning is engine.step, which counts accumulation by the config. Several optimizers (GANs), "
        "two backward calls in a step with ZeRO-2 or 3, and toggling parameters do not work; zero_grad "
        "and clipping are the engine's.",
        remedy="One optimizer with parameter groups and one backward of the sum of the losses; for GANs DDP, or "
        "two engines made by deepspeed.initialize without Lightning.",
        evidence=("lightning.pytorch.plugins.precision.DeepSpeedPrecision",),
    ),
    Fact(
        id="lightning_optimizers",
        names=(
            "configure_optimizers",
            "lr_scheduler_configs",
            "_init_optimizers_and_lr_schedulers",
        ),
        beside=(
            "several models",
            "learning rate",
            "offload",
            "fails",
            "steps",
        ),
        title="Lightning: configure_optimizers with DeepSpeed",
        what="One optimizer and at most one scheduler are allowed. If the config has a section optimizer, "
        "configure_optimizers is not called. Lightning, not the engine, steps the scheduler, by its "
        'interval (an epoch unless interval is "step"), whatever steps fp16 has skipped.',
        remedy='{"optimizer": …, "lr_scheduler": {"scheduler": …, "interval": "step"}}; no optimizer in the '
        "config; trainer.estimated_stepping_batches for its length.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy._initialize_deepspeed_train",),
    ),
    Fact(
        id="lightning_converts_checkpoint",
        names=(
            "load_from_checkpoint",
            "lightning/pytorch/utilities/deepspeed.py:convert_zero_checkpoint_to_fp32_state_dict",
            "pytorch_lightning/utilities/deepspeed.py:convert_zero_checkpoint_to_fp32_state_dict",
            "utilities.deepspeed",
        ),
        title="Lightning: a DeepSpeed checkpoint is a directory",
        what="load_from_checkpoint reads a file, so that the directory has to be converted first, outside of "
        "the job, with the files of all ranks; ZeRO (stage 1 to 3) must have been on. Before 2.1 names "
        "begin with _forward_module. Parameters that were frozen or excluded may be missing.",
        remedy="convert_zero_checkpoint_to_fp32_state_dict(directory, file), then Model.load_from_checkpoint(file, "
        "strict=False if frozen ones are missing); without ZeRO checkpoint/mp_rank_00_model_states.pt has the weights "
        "under module.",
        evidence=("lightning.pytorch.utilities.deepspeed",),
    ),
    Fact(
        id="lightning_resumes",
        names=(
            "deepspeed_stage_1",
            "deepspeed_stage_2",
            "deepspeed_stage_3",
            "ckpt_path",
            "load_full_weights",
            "strict_loading",
            "lightning/pytorch/strategies/deepspeed.py:load_checkpoint",
            "pytorch_lightning/strategies/deepspeed.py:load_checkpoint",
        ),
        beside=(
            "resuming",
            "checkpoint + loading",
            "number of ranks",
        ),
        title="Lightning: ckpt_path with DeepSpeed",
        what="The engine loads the directory that it saved: the same number of ranks and stage, all files on "
        "all nodes. Lightning's scheduler and loops come from the same files. A single file has weights "
        "only, needs load_full_weights=True, and that with ZeRO-3.",
        remedy="ckpt_path=the directory (not the file in it), the same devices; for adapters strict_loading = "
        "False in the module (2.2 or later).",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy.load_checkpoint",),
    ),
    Fact(
        id="lightning_saves",
        names=(
            "deepspeed_stage_2",
            "deepspeed_stage_3",
            "ModelCheckpoint",
            "trainer.save_checkpoint",
            "save_weights_only",
            "on_save_checkpoint",
            "lightning/pytorch/strategies/deepspeed.py:save_checkpoint",
            "pytorch_lightning/strategies/deepspeed.py:save_checkpoint",
        ),
        beside=(
            "saving + hang",
            "saving + large",
            "saving + empty",
            "saving + checkpoint",
            "saving + fails",
            "checkpoint + hang",
        ),
        title="Lightning: checkpoints are written by the engine, from all ranks",
        what="trainer.save_checkpoint under `if rank == 0`, or ModelCheckpoint with a metric that differs "
        "between ranks, hangs. save_weights_only leaves nothing out: the optimizer's partitions are "
        "written all the same. What on_save_checkpoint removes from state_dict is still saved; "
        'checkpoint["state_dict"] is not used.',
        remedy="Metrics with sync_dist=True; save_checkpoint on all ranks; exclude_frozen_parameters=True (2.5.5 "
        "or later) for adapters; the optimizer's files may be deleted if nothing is resumed or converted.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy.save_checkpoint",),
    ),
    Fact(
        id="lightning_clipping_and_accumulation",
        names=(
            "gradient_clip_val",
            "gradient_clip_algorithm",
            "accumulate_grad_batches",
            "configure_gradient_clipping",
        ),
        title="Lightning: clipping and accumulation go to the DeepSpeed config",
        what="gradient_clip_val (by norm only) is used if the config has no gradient_clipping; "
        "accumulate_grad_batches becomes gradient_accumulation_steps, which must not be in the config and "
        "cannot change during training (GradientAccumulationScheduler). configure_gradient_clipping has "
        "no effect, and in hooks before the step gradients are partitioned.",
        remedy="Both in the Trainer, neither in the config; deepspeed.utils.safe_get_full_grad(parameter) to "
        "look at gradients.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy._format_batch_size_and_grad_accum_config",),
    ),
    Fact(
        id="lightning_precision",
        names=(
            "bf16-mixed",
            "bf16-true",
            "DeepSpeedPrecision",
            "DeepSpeedPrecisionPlugin",
            "lightning/pytorch/plugins/precision/deepspeed.py:backward",
            "lightning/fabric/plugins/precision/deepspeed.py:backward",
        ),
        beside=(
            "nan",
            "differs",
            "fp16 + loss",
            "bf16 + loss",
            "loss + fails",
        ),
        title="Lightning: mixed precision with DeepSpeed is not autocast",
        what="16-mixed and bf16-mixed switch on fp16 or bf16 of DeepSpeed: the engine casts the whole module, "
        "and floating-point inputs of the step are cast; tensors that the step makes itself stay fp32 and "
        "do not fit. Loss functions run in half precision, too.",
        remedy="bf16-mixed; dtype=self.dtype for new tensors; .float() before the loss; inputs that have to stay "
        "fp32 made inside the module.",
        evidence=("lightning.pytorch.plugins.precision.DeepSpeedPrecision",),
    ),
    Fact(
        id="lightning_without_training",
        names=(
            "trainer.test",
            "trainer.validate",
            "_initialize_deepspeed_inference",
            "lightning/pytorch/strategies/deepspeed.py:_initialize_deepspeed_inference",
            "pytorch_lightning/strategies/deepspeed.py:_initialize_deepspeed_inference",
        ),
        title="Lightning: test, validate and predict with DeepSpeed",
        what="Each makes a new engine without optimizer, after all hooks of the modules were removed (PEFT's and "
        "hooks for features, too). ZeRO-3 gathers weights in every pass; ZeRO-1 and 2 have nothing to divide.",
        remedy="One device without the strategy, with converted weights; or another process with the same "
        "strategy and ckpt_path.",
        evidence=("lightning.pytorch.strategies.DeepSpeedStrategy._initialize_deepspeed_inference",),
    ),
    Fact(
        id="lightning_training_step",
        names=("on_after_backward", "on_before_optimizer_step"),
        beside=(
            "gradients",
            "none",
            "zero-3 + hang",
            "unused",
        ),
        title="Lightning: the hooks after backward, with DeepSpeed",
        what="A step that returns None is refused. .grad is None, or partitioned, in on_after_backward and "
        "before the step, and a gradient that is changed there is not used. Under ZeRO-3 a branch that "
        "only some ranks take (a module, a skipped batch) makes the others wait.",
        remedy="Return a loss on all ranks (times 0 for a bad batch); deepspeed.utils.safe_get_full_grad(parameter).",
        evidence=("lightning.pytorch.plugins.precision.DeepSpeedPrecision.optimizer_step",),
    ),
    Fact(
        id="lightning_averaging",
        names=(
            "StochasticWeightAveraging",
            "EMAWeightAveraging",
            "WeightAveraging",
        ),
        title="Lightning: callbacks that average weights, with DeepSpeed",
        what="StochasticWeightAveraging refuses the DeepSpeed strategy, and the averaging callbacks do not "
        "work with partitioned models: they copy parameters, which are empty under ZeRO-3.",
        remedy="DDP; or average checkpoints after training, when they are converted to fp32.",
        evidence=("lightning.pytorch.callbacks.StochasticWeightAveraging",),
    ),
    Fact(
        id="fabric_engine",
        names=(
            "fabric.setup",
            "fabric.backward",
            "fabric.save",
            "setup_module",
            "lightning/fabric/strategies/deepspeed.py:setup_module_and_optimizers",
            "lightning/fabric/strategies/deepspeed.py:_initialize_engine",
            "lightning/fabric/strategies/deepspeed.py:save_checkpoint",
        ),
        title="Fabric with DeepSpeed",
        what="Model and optimizer have to be set up in one call, one optimizer for each model. A model without "
        "an optimizer needs ZeRO-3; with several, backward has to be told which: fabric.backward(loss, "
        "model=model). Clipping by Fabric is refused, accumulation is by the config's keys; save takes "
        "exactly one engine, on all ranks.",
        remedy="fabric.setup(model, optimizer); frozen models by .to(fabric.device) without setup; "
        "gradient_clipping in DeepSpeedStrategy(config=…).",
        evidence=("lightning.fabric.strategies.DeepSpeedStrategy",),
    ),
)
