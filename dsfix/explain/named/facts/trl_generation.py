"""TRL under DeepSpeed: generation and vLLM in training."""

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
        what="It uses DeepSpeed's private names, so that the releases have to fit: since DeepSpeed 0.16.4 they are "
        "called otherwise, which TRL 0.16 knows. It needs the engine, not the bare model.",
        remedy="TRL 0.16 or later with DeepSpeed 0.16.4 or later, or DeepSpeed 0.16.3 with older ones; "
        "ds3_gather_for_generation=False where the hooks fail.",
        evidence=("trl.models.utils.add_hooks",),
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
        id="vllm_takes_memory",
        names=("vLLM",),
        beside=(
            "rlhf + oom",
            "rlhf + memory",
            "oom + start",
        ),
        title="vLLM takes its share of a GPU at once",
        what="vLLM reserves gpu_memory_utilization (0.9 unless the trainer says less) of the whole card when "
        "it starts, for its weights and its cache, whatever the training needs there; DeepSpeed's states, "
        "and the gathered weights of ZeRO-3 that are sent to it, come on top.",
        remedy="A GPU for vLLM that no rank of the training uses; or the trainer's vllm_gpu_memory_utilization "
        "at 0.2 to 0.4 and its sleep mode; a smaller max_model_len.",
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
        remedy="use_vllm; a shorter max_completion_length; ZeRO-2 where the model fits; py-spy dump on the ranks "
        "shows which one is elsewhere.",
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
