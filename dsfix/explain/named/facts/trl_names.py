"""TRL's trainers under DeepSpeed: reference, reward and value models, and losses."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
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
        what="It gets an engine of its own: partitioned with ZeRO-3; with ZeRO-1 and 2 whole on every GPU (stage "
        "0). create_reference_model copies the model, which ZeRO-3 does not allow. With LoRA no second model is "
        "needed (the adapter is switched off); precompute_ref_log_probs spares it during training, not while it "
        "computes, and older TRL refuses it with ZeRO-3.",
        remedy="With LoRA ref_model=None; else the same model by from_pretrained as ref_model; ZeRO-3 if two do "
        "not fit; smaller per_device_eval_batch_size.",
        evidence=("trl.models.utils.prepare_deepspeed",),
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
        "per_device_train_batch_size), through policy and reference, with logits over the whole vocabulary. With "
        "ZeRO-1 and 2 the reference is whole on each GPU.",
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
        "unset_hf_deepspeed_config() while reward models are loaded that no engine gets.",
        evidence=("trl.trainer.ppo_trainer",),
    ),
    Fact(
        id="fused_loss_of_head",
        names=(
            "liger_kernel",
            "use_liger_kernel",
            "use_liger_loss",
            "use_liger",
            "enable_liger_kernel",
            "LigerFusedLinearCrossEntropyLoss",
            "liger_kernel/ops/fused_linear_cross_entropy.py:fused_linear_cross_entropy_forward",
            "liger_kernel/ops/fused_linear_cross_entropy.py:forward",
            "liger_kernel/transformers/functional.py:liger_fused_linear_cross_entropy",
        ),
        beside=(
            "zero-3",
            "empty",
            "differs",
        ),
        title="Liger's fused loss under ZeRO-3",
        what="It reads lm_head.weight instead of calling lm_head. Inside the engine's forward pass (Liger's models "
        "of transformers) ZeRO-3 gathers a weight that is read so; a loss that is computed after it, as in the "
        "trainers of older TRL, meets an empty weight (shape [0]). With lm_head in modules_to_save or LoRA on it "
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
        "oneself; or load them without zero.Init (unset_hf_deepspeed_config() before), if they fit; "
        "ms-swift: teacher_deepspeed.",
        evidence=("trl.models.utils.prepare_deepspeed",),
    ),
)
