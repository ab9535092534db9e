"""Projects that train with DeepSpeed: LLaMA-Factory, ms-swift, axolotl, OpenRLHF, LLaVA, FastChat and their like."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="llamafactory_launch",
        names=(
            "FORCE_TORCHRUN",
            "llamafactory_cli",
            "train_bash",
        ),
        beside=(
            "fails",
            "one gpu",
            "start",
            "nodes",
            "alone",
            "how",
        ),
        title="LLaMA-Factory: DeepSpeed needs a launcher",
        what="llamafactory-cli starts torchrun by itself only with more than one visible GPU, or with "
        "FORCE_TORCHRUN=1; a script that is started by python has no ranks, and DeepSpeed is refused or "
        "sees one. Several nodes: NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT on each.",
        remedy="FORCE_TORCHRUN=1 llamafactory-cli train FILE.yaml; or deepspeed/torchrun src/train.py with the "
        "same arguments.",
        evidence=("llamafactory.hparams.parser",),
    ),
    Fact(
        id="llamafactory_options",
        names=("pure_bf16", "quantization_bit", "use_unsloth"),
        beside=(
            "zero-3",
            "fails",
        ),
        title="LLaMA-Factory: options that do not go with ZeRO-3",
        what="pure_bf16, predict_with_generate, unsloth, quantized models (GPTQ, AWQ, 8 bits) and several adapters "
        "are refused with ZeRO-3; GaLore and APOLLO with DeepSpeed at all.",
        remedy="ZeRO-2 (ds_z2_config.json) for these; ZeRO-3 for full tuning or LoRA of what does not fit one "
        "GPU, offload only if it does not fit otherwise.",
        evidence=("llamafactory.hparams.parser",),
    ),
    Fact(
        id="swift_options",
        names=("NPROC_PER_NODE", "default-zero3", "zero3_offload", "zero2_offload", "move_model_batches"),
        beside=(
            "fails",
            "one gpu",
            "hang",
            "oom",
            "slow",
            "start",
            "how",
            "alone",
        ),
        title="ms-swift: how DeepSpeed is used",
        what="--deepspeed zero0 to zero3, zero2_offload, zero3_offload are configs of its own. swift starts "
        "torchrun only if NPROC_PER_NODE is set; without it one process sees all GPUs, spreads the model "
        "by device_map, and DeepSpeed is refused or runs on one GPU.",
        remedy="NPROC_PER_NODE=number of GPUs (and CUDA_VISIBLE_DEVICES) before swift sft; no --device_map; "
        "NNODES, NODE_RANK, MASTER_ADDR for several machines; GRPO memory: move_model_batches, "
        "sleep_level, offload_model.",
        evidence=(
            "swift.arguments.sft_args",
            "swift.cli.main",
        ),
    ),
    Fact(
        id="axolotl_options",
        names=(
            "deepspeed_configs",
            "zero3_bf16.json",
            "axolotl.cli",
            "zero3_bf16_cpuoffload_all",
            "sample_packing",
        ),
        beside=(
            "fails",
            "oom",
            "adapter + zero-3",
            "saving",
            "hang",
            "one gpu",
        ),
        title="axolotl: the DeepSpeed key of its YAML",
        what="axolotl makes an accelerate environment of it, so that it has to be started by axolotl train or "
        "accelerate launch; on one GPU without a launcher DeepSpeed may look for MPI (mpi4py). FSDP, ReLoRA and "
        "some optimizers (Muon) are refused beside it; QLoRA with ZeRO-3 may fail (CheckpointError) with "
        "use_reentrant: false.",
        remedy="accelerate launch -m axolotl.cli.train FILE, zero2.json first; merging by axolotl merge-lora "
        "without deepspeed; no deepspeed on one GPU unless offload is wanted.",
        evidence=("axolotl.utils.schemas.validation",),
    ),
    Fact(
        id="openrlhf_memory",
        names=(
            "adam_offload",
            "colocate_all_models",
            "deepspeed_enable_sleep",
            "vllm_enable_sleep",
            "colocate_actor_ref",
            "ds.zpg",
            "micro_rollout_batch_size",
            "ring_attn_size",
        ),
        title="OpenRLHF: memory of engines that share GPUs",
        what="With colocate_all_models vLLM and the DeepSpeed engines are on the same GPUs; the sleep options move "
        "vLLM's cache and the engines' states to the host while the other works; vllm_enable_sleep counts only with "
        "it. adam_offload needs host memory and a compiled DeepSpeedCPUAdam; with it deepspeed_enable_sleep moves "
        "nothing, and without it needs ZeRO-3 or a DeepSpeed after 0.17.5.",
        remedy="colocate_all_models with vllm_enable_sleep, deepspeed_enable_sleep and a "
        "vllm_gpu_memory_utilization near 0.5; zero_stage 3; micro batches of 1; packing_samples.",
        evidence=("openrlhf.cli.train_ppo_ray",),
    ),
    Fact(
        id="gathered_by_hand",
        names=(
            "maybe_zero_3",
            "get_peft_state_maybe_zero_3",
            "get_peft_state_non_lora_maybe_zero_3",
            "get_mm_adapter_state_maybe_zero_3",
            "non_lora_trainables.bin",
            "mm_projector.bin",
            "non_lora_trainables",
        ),
        title="LLaVA, FastChat, Qwen: what their own saving gathers",
        what="maybe_zero_3 gathers one parameter, on all ranks; what it saves are the adapter (lora_…) and "
        "non_lora_trainables.bin or mm_projector.bin, not the base model. Warnings of NOT_AVAILABLE are harmless. "
        "checkpoint-N of the Trainer has no non_lora_trainables.bin.",
        remedy="Let the script end (it saves at the end), on all ranks; load with model_base=the base model and "
        "a path whose name has lora; empty tensors in the file mean that gathering was left out.",
        evidence=("https://github.com/haotian-liu/LLaVA/blob/main/llava/train/train.py",),
    ),
    Fact(
        id="vision_tower_under_zero3",
        names=(
            "vision_tower",
            "mm_projector",
            "CLIPVisionModel",
            "tune_mm_mlp_adapter",
            "mm_vision_tower",
            "freeze_vision_tower",
            "group_by_modality_length",
            "pretrain_mm_mlp_adapter",
            "CLIPVisionModel.from_pretrained",
            "SiglipVisionModel",
        ),
        beside=(
            "zero-3",
            "hang",
            "empty",
            "loading + fails",
            "fails + images",
        ),
        title="vision towers of multimodal models under ZeRO-3",
        what="from_pretrained of a tower inside of another model's construction meets zero.Init twice or with "
        "its own config: weights are empty or random. Batches without images do not run the tower on some "
        "ranks, and ZeRO-3 then hangs; a projector that is loaded by load_state_dict needs its weights "
        "gathered.",
        remedy="A dummy image (times 0) in every batch, or group_by_modality_length; ZeRO-2 for stages that "
        "train a projector only; the tower made after, or outside of, zero.Init.",
        evidence=("https://github.com/haotian-liu/LLaVA/blob/main/llava/train/train.py",),
    ),
    Fact(
        id="deepspeed_chat_hybrid",
        names=("unpin_actor_parameters", "actor_zero_stage", "critic_zero_stage", "offload_reference_model"),
        title="DeepSpeed-Chat, step 3: the actor generates in the hybrid engine",
        what="The hybrid engine uses inference kernels of a few old model classes (OPT, GPT, BLOOM, LLaMA of "
        "transformers 4.3x): with newer ones it fails or generates nonsense. inference_tp_size needs "
        "actor_zero_stage 3; with the hybrid engine ZeRO-2 with offload and without LoRA is refused.",
        remedy="Without --enable_hybrid_engine first; the transformers that its requirements name; actor and "
        "critic from steps 1 and 2, not the bare models.",
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/tree/master/applications/DeepSpeed-Chat",),
    ),
    Fact(
        id="deepspeed_chat_saving",
        names=(
            "save_zero_three_model",
            "convert_lora_to_linear_layer",
            "only_optimize_lora",
            "actor_lora_dim",
            "save_hf_format",
        ),
        beside=(
            "saving",
            "empty",
            "loading",
            "adapter",
            "fails",
            "incomplete",
        ),
        title="DeepSpeed-Chat: what is saved",
        what="Under ZeRO-3 save_zero_three_model gathers each parameter on all ranks, and leaves out names "
        "with lora: convert_lora_to_linear_layer has to have merged them before. The file has a whole "
        "state dict, the embedding padded to a multiple of 8.",
        remedy="convert_lora_to_linear_layer(model) first; all ranks; load by create_hf_model with the saved "
        "config and tokenizer.",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeedExamples/blob/master/applications/DeepSpeed-Chat/dschat/utils/utils.py",
        ),
    ),
    Fact(
        id="megatron_deepspeed_options",
        names=("no_pipeline_parallel", "deepspeed_activation_checkpointing", "GPTModelPipe"),
        title="Megatron-DeepSpeed: its options and ZeRO",
        what="Unless --no-pipeline-parallel is given, the model is a PipelineModule even with one stage, which "
        "excludes ZeRO-2 and 3 and has layer_… files in its checkpoints. --zero-stage must be that of the "
        "DeepSpeed config. The world is divided by tensor, pipeline and sequence size; the rest is data "
        "parallel.",
        remedy="ZeRO-2 and 3: --no-pipeline-parallel, pipeline size 1; --deepspeed-activation-checkpointing "
        "beside --checkpoint-activations; batch sizes of both configs alike.",
        evidence=("https://github.com/deepspeedai/Megatron-DeepSpeed/blob/main/megatron/arguments.py",),
    ),
    Fact(
        id="diffusers_training",
        names=("train_text_encoder", "train_dreambooth", "train_text_to_image"),
        beside=(
            "zero-3",
            "several models",
            "fails",
            "empty",
            "saving",
            "slow",
            "oom",
        ),
        title="diffusers' training scripts with DeepSpeed",
        what="Only one model is prepared: the UNet or transformer. Text encoders and VAE stay outside, and "
        "must not be partitioned: while a ZeRO-3 config is active their from_pretrained has to run with "
        "zero.Init disabled; train_text_encoder needs one module for both. Save hooks get no weights.",
        remedy="ZeRO-2 (with offload_optimizer); unset_hf_deepspeed_config() of transformers while frozen models "
        "are loaded (accelerate 1.0 and later do not disable zero.Init otherwise); LoRA saved from the "
        "unwrapped model after gathering.",
        evidence=("https://github.com/huggingface/diffusers/blob/main/examples/text_to_image/train_text_to_image.py",),
    ),
    Fact(
        id="sentence_transformers_training",
        names=("sentence_transformers", "SentenceTransformerTrainer", "SentenceTransformerTrainingArguments"),
        beside=("training", "zero-1", "zero-2", "zero-3"),
        title="sentence-transformers with DeepSpeed: bucket sizes as numbers",
        what="transformers fills in reduce_bucket_size, and for ZeRO-3 stage3_prefetch_bucket_size and "
        'stage3_param_persistence_threshold, from the model\'s config.hidden_size if they are "auto". A '
        "SentenceTransformer is a container of modules without such a config, so that the Trainer fails before the "
        "first step.",
        remedy='Numbers in zero_optimization instead of "auto", such as "reduce_bucket_size": 5e8; the other keys may '
        'stay "auto".',
        evidence=("transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig.trainer_config_finalize",),
    ),
)
