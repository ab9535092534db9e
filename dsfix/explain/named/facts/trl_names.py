"""TRL's trainers under DeepSpeed: reference models, generation, vLLM."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="gathering_for_generation",
        names=(
            "ds3_gather_for_generation",
            "unwrap_model_for_generation",
            "gather_deepspeed3_params",
        ),
        title="TRL: weights are gathered before generation (ds3_gather_for_generation)",
        what="With ZeRO-3 the default gathers the whole model on every GPU while it generates, which has to "
        "fit. False leaves it partitioned: every token gathers every weight again, and a first step that "
        "takes hours looks like a hang; vLLM cannot be used then.",
        remedy="True with a model that fits one GPU beside its optimizer partitions; else use_vllm=True, a "
        "smaller model or shorter completions; ZeRO-2.",
        evidence=("trl.models.utils.unwrap_model_for_generation",),
    ),
    Fact(
        id="hooks_around_generation",
        names=(
            "add_hooks",
            "remove_hooks",
            "trl/models/utils.py:add_hooks",
            "trl/models/utils.py:remove_hooks",
            "trl/models/utils.py:unwrap_model_for_generation",
            "trl/models/utils.py:_unwrap_model_for_generation",
            "trl/models/utils.py:iter_params",
            "trl/models/utils.py:get_all_parameters",
        ),
        title="TRL takes ZeRO-3's hooks off for generation, and puts them on again",
        what="It uses DeepSpeed's private names, so that the releases have to fit: since DeepSpeed 0.16.4 they "
        "are called otherwise, which TRL 0.16 knows. It needs the engine with its optimizer, not the bare "
        "model; code that does the same for a frozen engine fails.",
        remedy="TRL 0.16 or later with DeepSpeed 0.16.4 or later, or DeepSpeed 0.16.3 with older ones; "
        "ds3_gather_for_generation=False where the hooks fail.",
        evidence=("trl.models.utils.add_hooks",),
    ),
    Fact(
        id="reference_model_of_trl",
        names=(
            "ref_model",
            "create_reference_model",
            "ref_model_init_kwargs",
            "prepare_deepspeed",
            "precompute_ref_log_probs",
            "sync_ref_model",
            "trl/models/utils.py:prepare_deepspeed",
            "trl/trainer/dpo_trainer.py:_prepare_deepspeed",
            "trl/trainer/utils.py:prepare_deepspeed",
        ),
        title="TRL: the reference model under DeepSpeed",
        what="It gets an engine of its own: partitioned with ZeRO-3; with ZeRO-1 and 2 whole on every GPU "
        "(stage 0). create_reference_model copies the model, which ZeRO-3 does not allow. With LoRA no "
        "second model is needed (the adapter is switched off); precompute_ref_log_probs spares it during "
        "training, not while it computes.",
        remedy="With LoRA ref_model=None; else the same model by from_pretrained as ref_model; ZeRO-3 if two do "
        "not fit; smaller per_device_eval_batch_size.",
        evidence=("trl.models.utils.prepare_deepspeed",),
    ),
    Fact(
        id="vllm_beside_training",
        names=(
            "_move_full_model_to_vllm",
            "use_vllm",
            "vllm_mode",
            "vllm_gpu_memory_utilization",
            "vllm_server_host",
            "vllm_device",
            "move_model_to_vllm",
            "_move_model_to_vllm",
            "vllm_serve",
            "trl/trainer/grpo_trainer.py:_move_model_to_vllm",
            "trl/generation/vllm_generation.py:sync_weights",
            "trl/extras/vllm_client.py:init_communicator",
            "trl/extras/vllm_client.py:update_named_param",
        ),
        title="TRL: vLLM beside a DeepSpeed training",
        what="colocate: vLLM's memory (vllm_gpu_memory_utilization of the whole card) and the training's are "
        "on the same GPU. server: it has GPUs that the training must not see; both form a process group, "
        "over a port that has to be reachable. ZeRO-3 gathers weight by weight to send it, on all ranks; "
        "with LoRA all is gathered and merged.",
        remedy="colocate with 0.2 to 0.4 and vllm_enable_sleep_mode; server with CUDA_VISIBLE_DEVICES of its own "
        "and num_processes without its GPUs; the vLLM release that this TRL names.",
        evidence=("trl.trainer.grpo_config.GRPOConfig",),
    ),
    Fact(
        id="online_trainers_hang",
        names=(
            "GRPOTrainer",
            "PPOTrainer",
            "RLOOTrainer",
            "OnlineDPOTrainer",
            "num_generations",
            "PPOv2Trainer",
            "max_completion_length",
        ),
        beside=(
            "hang",
            "slow",
            "zero-3 + hang",
            "zero-3 + slow",
            "connection",
        ),
        title="TRL: generation in training hangs or is slow under ZeRO-3",
        what="All ranks generate until the longest text of any of them ends; a rank without vLLM that waits "
        "for long runs into NCCL's timeout. Under ZeRO-3 without gathering each token gathers the model; "
        "a reward function that takes long or fails on one rank makes the others wait, too.",
        remedy="use_vllm; a shorter max_completion_length; ddp_timeout; ZeRO-2 where the model fits; py-spy dump "
        "on the ranks shows which one is elsewhere.",
        evidence=("trl.trainer.grpo_trainer.GRPOTrainer",),
    ),
    Fact(
        id="online_trainers_memory",
        names=(
            "GRPOTrainer",
            "PPOTrainer",
            "RLOOTrainer",
            "OnlineDPOTrainer",
            "num_generations",
            "num_mini_batches",
        ),
        beside=(
            "oom",
            "memory",
            "grows",
        ),
        title="TRL: what takes memory in GRPO and PPO",
        what="Policy, reference (whole on each GPU with ZeRO-2), PPO's value and reward models, vLLM or the "
        "gathered policy and its key-value cache while generating, and logits of batch by length by "
        "vocabulary, which ZeRO does not divide. ZeRO-3 divides the models only.",
        remedy="beta=0.0 or LoRA: no reference model; per_device_train_batch_size and lengths down, "
        "gradient_accumulation_steps up; gradient_checkpointing; use_liger_kernel where this TRL supports "
        "it; ZeRO-3.",
        evidence=("trl.trainer.grpo_trainer.GRPOTrainer",),
    ),
    Fact(
        id="preference_trainers_memory",
        names=(
            "DPOTrainer",
            "KTOTrainer",
            "ORPOTrainer",
            "CPOTrainer",
            "concatenated_forward",
            "trl/trainer/dpo_trainer.py:concatenated_forward",
            "trl/trainer/dpo_trainer.py:compute_ref_log_probs",
        ),
        beside=(
            "oom",
            "memory",
            "grows",
            "host",
        ),
        title="TRL: what takes memory in DPO",
        what="Chosen and rejected text of a pair go through the model in one batch (twice "
        "per_device_train_batch_size), through policy and reference, with logits over the whole "
        "vocabulary, upcast to fp32. With ZeRO-1 and 2 the reference is whole on each GPU.",
        remedy="per_device_train_batch_size=1 and gradient_accumulation_steps, max_length, "
        "gradient_checkpointing; precompute_ref_log_probs or LoRA (no reference model); ZeRO-3.",
        evidence=("trl.trainer.dpo_trainer.DPOTrainer",),
    ),
    Fact(
        id="preference_trainers_zero3",
        names=(
            "DPOTrainer",
            "KTOTrainer",
            "ORPOTrainer",
            "RewardTrainer",
            "SFTTrainer",
            "trl/trainer/dpo_trainer.py:get_batch_loss_metrics",
        ),
        beside=(
            "zero-3 + fails",
            "zero-3 + empty",
            "zero-3 + loading",
            "adapter + zero-3",
            "reference model + fails",
            "adapter + fails",
        ),
        title="TRL's trainers with ZeRO-3",
        what="Models that are passed as objects have to be made after the arguments (DPOConfig, SFTConfig with "
        "deepspeed, or an Accelerator), else they are not partitioned; the reference model is prepared by "
        "recent TRL only. LoRA with ZeRO-3 needs reentrant checkpointing, which current TRL sets.",
        remedy="A current TRL that fits transformers and accelerate; model as a name instead of an object; "
        "peft_config to the trainer; ZeRO-2 tells whether it is ZeRO-3.",
        evidence=("trl.trainer.dpo_trainer.DPOTrainer",),
    ),
    Fact(
        id="value_head_of_trl",
        names=(
            "AutoModelForCausalLMWithValueHead",
            "v_head",
            "value_head",
            "valuehead_files",
            "PolicyAndValueWrapper",
            "ppo_trainer.generate",
            "ppo_trainer.step",
        ),
        title="TRL: models with a value head under DeepSpeed",
        what="The head is added after the model was made: with ZeRO-3 the wrapper's own loading meets empty "
        "weights, and its state dict has to be gathered. PPO needs policy, value, reward and reference in "
        "engines; generation of the wrapper without hooks works on partitions, or each token gathers "
        "everything.",
        remedy="ZeRO-2 for PPO where it fits; a current TRL (PPOTrainer with value_model, reward_model); "
        "zero3_init_context_manager(enable=False) while reward models are loaded.",
        evidence=("trl.trainer.ppo_trainer",),
    ),
    Fact(
        id="fused_loss_of_head",
        names=(
            "use_liger_kernel",
            "use_liger_loss",
            "use_liger",
            "enable_liger_kernel",
            "LigerFusedLinearCrossEntropyLoss",
            "liger_kernel/ops/fused_linear_cross_entropy.py:fused_linear_cross_entropy_forward",
            "liger_kernel/ops/fused_linear_cross_entropy.py:forward",
            "liger_kernel/transformers/functional.py:liger_fused_linear_cross_entropy",
        ),
        title="Liger's fused loss under ZeRO-3",
        what="It reads lm_head.weight itself instead of calling lm_head, so that no hook gathers it: under "
        "ZeRO-3 the weight is empty unless the code gathers it around the loss, as Liger does for models "
        "of transformers and recent TRL for its own losses. With lm_head in modules_to_save or LoRA on it "
        "the weight is another one.",
        remedy="A current liger-kernel and TRL; without it for the trainer that fails; ZeRO-2.",
        evidence=("trl.trainer.utils",),
    ),
    Fact(
        id="reward_and_teacher_models",
        names=(
            "reward_model",
            "reward_funcs",
            "teacher_model",
            "GKDTrainer",
            "teacher_deepspeed",
            "teacher_model_name_or_path",
        ),
        beside=(
            "zero-3",
            "several models",
            "empty",
            "oom",
            "loading + fails",
        ),
        title="frozen models beside the trained one under ZeRO-3",
        what="from_pretrained partitions them as well while a ZeRO-3 config is active; unless the trainer "
        "makes an engine of each (prepare_deepspeed), their weights are empty when they are called. With "
        "ZeRO-1 and 2 they are whole on each GPU.",
        remedy="A trainer that prepares them; deepspeed.initialize(model=frozen, config=ZeRO-3 config) by "
        "oneself; or load them under zero3_init_context_manager(enable=False), if they fit; ms-swift: "
        "teacher_deepspeed.",
        evidence=("trl.models.utils.prepare_deepspeed",),
    ),
    Fact(
        id="generating_during_evaluation",
        names=(
            "generate_during_eval",
            "WinRateCallback",
            "LogCompletionsCallback",
            "trl/trainer/callbacks.py:on_evaluate",
            "trl/trainer/callbacks.py:_generate_completions",
        ),
        title="generation in the evaluation of a DeepSpeed training",
        what="Under ZeRO-3 all ranks have to generate, and as many tokens; code under `if main process`, or "
        "different numbers of prompts, hang. Gathering the weights around it needs room for the whole "
        "model.",
        remedy="generate_during_eval=False, and a script on saved weights; or the same number of prompts on all "
        "ranks, gathered or with synced_gpus=True.",
        evidence=("trl.models.utils.unwrap_model_for_generation",),
    ),
)
