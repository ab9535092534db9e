"""transformers' Trainer under DeepSpeed: its steps, its optimizer, its evaluation."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="trainer_optimizer",
        names=(
            "create_optimizer",
            "create_optimizer_and_scheduler",
            "optimizer_grouped_parameters",
        ),
        title="transformers: whose optimizer the Trainer uses under DeepSpeed",
        what="If the DeepSpeed config has a section optimizer, create_optimizer is not called: DeepSpeed gets all "
        "trainable parameters in one group, so that own groups, learning rates by layer and exceptions from weight "
        "decay are lost, and optim of the arguments is ignored. Without the section the Trainer's own is used. An "
        "optimizer in optimizers=(…) is refused by older releases, and replaced in newer ones.",
        remedy="No section optimizer (and no scheduler) in the DeepSpeed config, and create_optimizer overridden in "
        "a class of one's own.",
        evidence=("transformers.integrations.deepspeed.deepspeed_optim_sched",),
    ),
    Fact(
        id="optimizer_of_bitsandbytes",
        names=(
            "paged_adamw_8bit",
            "paged_adamw_32bit",
            "adamw_bnb_8bit",
            "adamw_8bit",
            "AdamW8bit",
            "Adam8bit",
            "use_8bit_adam",
            "PagedAdamW8bit",
        ),
        beside=("offload", "host", "differs"),
        title="8-bit and paged optimizers of bitsandbytes with offload_optimizer",
        what="With offload_optimizer they cannot run on the CPU: accelerate (and with it the Trainer) puts "
        "DeepSpeedCPUAdam in their place, with the same groups; 8-bit AdamW then runs as Adam with L2, as only "
        "32-bit AdamW is recognised.",
        remedy="adamw_torch, or a section optimizer in the DeepSpeed config, with offload_optimizer.",
        evidence=("accelerate.utils.deepspeed.map_pytorch_optim_to_deepspeed",),
    ),
    Fact(
        id="trainer_scheduler",
        names=("warmup_ratio", "warmup_steps", "get_scheduler"),
        beside=(
            "learning rate + differs",
            "learning rate + zero loss",
            "learning rate + fails",
            "learning rate + wrong",
        ),
        title="transformers: the scheduler of the DeepSpeed config goes before lr_scheduler_type",
        what="If the config has a section scheduler, lr_scheduler_type is ignored: WarmupLR stays at its "
        "maximum after warming up, WarmupDecayLR falls linearly. In fp16 a step that overflows does not "
        "count, and until the first one that does the logged rate is 0.",
        remedy="No section scheduler for what lr_scheduler_type says (cosine); without it the Trainer's runs, "
        "also with an optimizer of the config.",
        evidence=("transformers.integrations.deepspeed.deepspeed_optim_sched",),
    ),
    Fact(
        id="tokens_of_accumulated_batches",
        names=(
            "num_items_in_batch",
            "average_tokens_across_devices",
            "model_accepts_loss_kwargs",
            "scale_wrt_gas",
        ),
        title="transformers: how the loss is divided while gradients are accumulated",
        what="Since 4.46 the loss of a model that takes num_items_in_batch is already divided by the tokens of "
        "the whole step. Through 4.48 the engine divided it by gradient_accumulation_steps once more, so "
        "that gradients are too small by that factor; 4.49 passes scale_wrt_gas=False. The tokens are "
        "those of one rank unless average_tokens_across_devices is set (the default in 4.57).",
        remedy="transformers 4.49 or later; average_tokens_across_devices=True; an own compute_loss that takes "
        "num_items_in_batch has to divide by it.",
        evidence=("https://github.com/huggingface/transformers/pull/35808",),
    ),
    Fact(
        id="own_compute_loss",
        names=(
            "compute_loss",
            "compute_loss_func",
            "transformers/trainer.py:compute_loss",
        ),
        beside=(
            "zero-3",
            "several models",
            "reference model",
            "hang",
            "empty",
            "differs",
            "accumulation",
            "fails",
        ),
        title="transformers: an own compute_loss under DeepSpeed",
        what="The model that it gets is the engine, and has to be called itself: under ZeRO-3 a weight that is read "
        "directly is empty, and self.model or a sub-module called beside it runs outside of the engine's forward "
        "pass. Branches that depend on the data make ZeRO-3's ranks wait for each other; a second model needs an "
        "engine of its own.",
        remedy="outputs = model(**inputs), once, on all ranks alike; deepspeed.zero.GatheredParameters around "
        "weights that are read; deepspeed.initialize for a frozen second model under ZeRO-3.",
        evidence=("transformers.Trainer.compute_loss",),
    ),
    Fact(
        id="inputs_cast_by_trainer",
        names=(
            "_prepare_inputs",
            "_prepare_input",
            "transformers/trainer.py:_prepare_input",
            "transformers/trainer.py:_prepare_inputs",
        ),
        title="transformers: floating-point inputs are cast to the config's dtype",
        what="Under DeepSpeed the Trainer casts every floating-point tensor of a batch to bf16 or fp16, as the "
        "config says, and to fp16 if it has neither section: images and labels of a regression lose "
        "precision, and large values become inf in fp16. Tensors that the model makes inside keep their "
        "own dtype.",
        remedy="bf16, or for fp32 fp16.enabled: false in the config; cast inside the model what has to be fp32, "
        "or what it makes itself to the weights' dtype.",
        evidence=("transformers.Trainer._prepare_input",),
    ),
    Fact(
        id="checkpointing_of_transformers",
        names=(
            "utils.checkpoint",
            "gradient_checkpointing_enable",
            "gradient_checkpointing_kwargs",
            "use_reentrant",
            "enable_input_require_grads",
            "gradient_checkpointing_disable",
        ),
        beside=(
            "recomputation + zero-3",
            "recomputation + adapter",
            "recomputation + empty",
            "recomputation + gradients",
            "recomputation + fails",
            "zero-3 + checkpoint + parameters + fails",
        ),
        title="transformers: gradient checkpointing under DeepSpeed",
        what="The reentrant kind (the default through 4.57) gives no gradients if no input requires them, as "
        "with LoRA on a frozen model. The other kind, with ZeRO-3, checks shapes that it meets as [0] "
        "(CheckpointError) in many releases. The reentrant kind must not run a checkpointed module twice "
        "in a pass, which ZeRO-1/2 reports.",
        remedy="ZeRO-3: use_reentrant True, and model.enable_input_require_grads() with LoRA. ZeRO-0 to 2: "
        'gradient_checkpointing_kwargs={"use_reentrant": False}. model.config.use_cache = False.',
        evidence=("https://github.com/huggingface/trl/issues/2514",),
    ),
    Fact(
        id="batch_size_finder",
        names=(
            "auto_find_batch_size",
            "find_executable_batch_size",
        ),
        title="auto_find_batch_size with DeepSpeed",
        what="After each out-of-memory error the training starts anew with a smaller batch and another engine, "
        "while the memory of the old one may not be free. Newer transformers refuses it with ZeRO-3; otherwise the "
        'config needs "auto" for the batch sizes, and all ranks have to fail alike.',
        remedy="A fixed per_device_train_batch_size that fits, with gradient_accumulation_steps.",
        evidence=("transformers.Trainer.propagate_args_to_deepspeed",),
    ),
    Fact(
        id="evaluation_without_training",
        names=(
            "trainer.evaluate",
            "trainer.predict",
            "do_eval",
            "do_predict",
            "transformers/integrations/deepspeed.py:deepspeed_init",
            "transformers/deepspeed.py:deepspeed_init",
            "transformers/trainer.py:evaluation_loop",
        ),
        beside=(
            "zero-2",
            "zero-1",
            "inference + fails",
        ),
        title="transformers: evaluate or predict without train under DeepSpeed",
        what="Without a training before it, only a ZeRO-3 config is accepted, as the other stages have nothing "
        "to divide then; an engine without optimizer is made. With training before it, the training "
        "engine evaluates, and all ranks need as many batches.",
        remedy="No deepspeed argument for evaluation alone, or a ZeRO-3 config; per_device_eval_batch_size small.",
        evidence=("transformers.integrations.deepspeed.deepspeed_init",),
    ),
    Fact(
        id="evaluation_collects_logits",
        names=(
            "compute_metrics",
            "eval_accumulation_steps",
            "preprocess_logits_for_metrics",
            "prediction_loss_only",
            "per_device_eval_batch_size",
            "transformers/trainer.py:_nested_gather",
            "transformers/trainer_pt_utils.py:nested_concat",
        ),
        beside=(
            "evaluation + oom",
            "evaluation + memory",
            "evaluation + hang",
            "evaluation + grows",
            "evaluation + host",
        ),
        title="transformers: evaluation keeps the logits of all batches",
        what="With compute_metrics the logits of every batch are gathered from all ranks, and kept on each GPU "
        "until the end: for a language model batch by length by vocabulary. ZeRO does not divide them. "
        "The ranks pad them to one size in a collective, where they wait if one has left.",
        remedy="preprocess_logits_for_metrics with argmax; eval_accumulation_steps=1 moves them to the host; "
        "prediction_loss_only=True; smaller evaluation batches.",
        evidence=("transformers.Trainer.evaluation_loop",),
    ),
)
