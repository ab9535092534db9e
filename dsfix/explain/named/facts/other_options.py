"""Other sections of the config: checkpoints, recomputation, data, tensor and sequence parallelism, compiling."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_load_universal",
        names=(
            "load_universal",
            "load_universal_checkpoint",
            "universal_checkpoint_info",
            "latest_universal",
        ),
        title="load_universal: the key that loads a universal checkpoint",
        what='It is a key of the section "checkpoint" of the DeepSpeed config; elsewhere, or as '
        "load_universal_checkpoint, it is ignored. load_checkpoint then reads latest_universal (or tag=), a directory "
        "that ds_to_universal made. With it a plain checkpoint cannot be loaded, and what is saved is a plain one "
        "again, so it belongs to one start only.",
        remedy='"checkpoint": {"load_universal": true} for the start after the conversion; then remove it.',
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.load_checkpoint",),
    ),
    Fact(
        id="of_use_node_local_storage",
        names=(
            "use_node_local_storage",
            "save_on_each_node",
        ),
        title="use_node_local_storage: checkpoints without a shared file system",
        what="Each node writes what its ranks need to resume on the same node; without it only one rank of all "
        "writes the model's states, and other nodes do not find them. The Trainer's save_on_each_node sets it. "
        "zero_to_fp32 and another placement of the ranks need the files of all nodes in one directory, and the file "
        "latest is written by rank 0 only.",
        remedy="A shared directory if there is one; otherwise copy latest and the files of all nodes together to "
        "convert or to move.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_checkpointing",),
    ),
    Fact(
        id="of_tag_validation",
        names=(
            "tag_validation",
            "_checkpoint_tag_validation",
        ),
        title="tag_validation: all ranks must save under one tag",
        what="save_checkpoint compares the tag over all ranks: with Fail, a difference (a tag with the rank, the "
        "time or the loss in it) is an assertion, with Warn, the default, a warning and files in several directories. "
        "It is a collective: a rank that does not save makes the others wait.",
        remedy="The same tag on all ranks (the step), save_checkpoint on all ranks.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._checkpoint_tag_validation",),
    ),
    Fact(
        id="of_activation_checkpointing",
        names=(
            "cpu_checkpointing",
            "contiguous_memory_optimization",
            "number_checkpoints",
            "synchronize_checkpoint_boundary",
            "activation_checkpointing",
        ),
        beside=(
            "memory",
            "oom",
            "unused",
            "how",
            "fails",
            "recomputation",
            "slow",
            "offload",
        ),
        title="the section activation_checkpointing switches no checkpointing on",
        what="It configures deepspeed.checkpointing.checkpoint, which the model itself must call "
        "(Megatron-DeepSpeed, pipelines), after deepspeed.checkpointing.configure. transformers' "
        "gradient_checkpointing uses torch's function, which reads none of these keys. contiguous_memory_optimization "
        "needs partition_activations and number_checkpoints; cpu_checkpointing moves saved inputs to the host.",
        remedy="With transformers: gradient_checkpointing=True of TrainingArguments, and leave the section out.",
        evidence=("deepspeed.runtime.activation_checkpointing.checkpointing.configure",),
    ),
    Fact(
        id="of_curriculum_learning",
        names=(
            "curriculum_learning",
            "curriculum_metrics",
            "curriculum_seqlen",
            "data_efficiency",
            "data_sampling",
            "min_difficulty",
        ),
        title="curriculum learning: two sections, and what the script must do",
        what="The old top-level section curriculum_learning (refused since 0.19.8) passes curriculum_seqlen to the "
        "forward pass, which the model must take and use to cut its input. "
        "data_efficiency.data_sampling.curriculum_learning needs training_data given to deepspeed.initialize and an "
        "index made by DataAnalyzer before. Through 0.19.6 difficulties are rounded down below min_difficulty.",
        remedy="The section under data_efficiency, with training_data; min_difficulty a multiple of difficulty_step.",
        patches=(
            "curriculum_below_minimum",
            "data_sampler_random_state",
        ),
        evidence=("deepspeed.runtime.data_pipeline",),
    ),
    Fact(
        id="of_random_ltd",
        names=(
            "convert_to_random_ltd",
            "random_ltd_layer_num",
            "data_routing",
        ),
        title="random_ltd: layers drop tokens, only in models that are converted",
        what="The section data_efficiency.data_routing.random_ltd needs convert_to_random_ltd(model, LayerClass) "
        "before deepspeed.initialize, the right random_ltd_layer_num and names of the layers' arguments (hidden "
        "states, mask), and a kernel that is compiled for CUDA. Layers of current transformers, which take position "
        "embeddings as keyword arguments, do not fit.",
        remedy="Only for models like those of the tutorials (GPT-2, BERT, ViT).",
        evidence=("deepspeed.runtime.data_pipeline.data_routing",),
    ),
    Fact(
        id="of_hybrid_engine_section",
        names=(
            "hybrid_engine",
            "max_out_tokens",
            "inference_tp_size",
            "release_inference_cache",
            "tp_gather_partition_size",
            "pin_parameters",
            "DeepSpeedHybridEngine",
            "enable_hybrid_engine",
            "deepspeed/runtime/hybrid_engine.py:create_inference_containers",
            "deepspeed/runtime/hybrid_engine.py:generate",
            "deepspeed/runtime/hybrid_engine.py:step",
        ),
        title="hybrid_engine: generation with inference kernels while training",
        what="For DeepSpeed-Chat: it knows the architectures of its containers only (OPT, BLOOM, GPT-NeoX, GPT-J, "
        "LLaMA of old transformers); others, and grouped key and value heads, fail or generate nonsense. "
        "max_out_tokens (512) is the whole length, prompt included, and is allocated for the batch; inference_tp_size "
        "divides the ranks into groups that generate together.",
        remedy='Without it ("enabled": false) generation is slower and right; a larger max_out_tokens; vLLM in newer '
        "frameworks.",
        evidence=("deepspeed.runtime.hybrid_engine",),
    ),
    Fact(
        id="of_autotp_size",
        names=(
            "autotp_size",
            "tp_model_init",
            "tp_overlap_comm",
            "partition_config",
            "preset_model",
        ),
        title="tensor_parallel.autotp_size: tensor parallelism in training",
        what="Since 0.16.4 the section tensor_parallel divides linear layers by their names over autotp_size ranks; "
        "ZeRO-3 is refused. The data-parallel size is ranks divided by it, all ranks of a group must get the same "
        "batch, and sizes (heads, vocabulary) must be divisible. Unknown layer names are left whole, or divided "
        "wrongly.",
        remedy="transformers and accelerate that know it; partition_config or preset_model (0.18.6 and later) for "
        "other models; ZeRO-1.",
        affects={"deepspeed": ">=0.16.4"},
        evidence=("deepspeed.runtime.tensor_parallel.config",),
    ),
    Fact(
        id="of_deepcompile_section",
        names=(
            "DeepCompile",
            "deepcompile_backward_prologue",
            "free_activation",
            "offload_opt_states",
            "offload_adam_states",
            "symmetric_memory",
        ),
        title="deepcompile: it needs engine.compile(), and a model that compiles whole",
        what='"compile": {"deepcompile": true} alone does nothing: the script calls engine.compile() after '
        "deepspeed.initialize. It needs ZeRO, CUDA and torch 2.6 or later (a torch newer than the release is refused), "
        "otherwise it falls back to torch's compiler. Graph breaks, frozen parameters (through 0.19.5), offload_states "
        "and other features that need ZeRO's hooks fail with it.",
        remedy="false to compare; torch.compile of the model's blocks works without it.",
        affects={"deepspeed": ">=0.16.6"},
        evidence=(
            "deepspeed.compile.config",
            "deepspeed.runtime.engine.DeepSpeedEngine.compile",
        ),
    ),
    Fact(
        id="of_sequence_parallel_size",
        names=(
            "sequence_parallel_size",
            "context_parallel_size",
        ),
        title="sequence_parallel_size: the data-parallel size becomes smaller",
        what="Ranks divided by it are what counts for train_batch_size. DeepSpeed itself reads the key for "
        "zero.Init, and with data_parallel_size for a mesh; Ulysses is switched on by the mpu "
        "(UlyssesSPAttentionHF.register_with_transformers, parallel_state_sp), by accelerate's ParallelismConfig or by "
        "the framework. Attention heads must be divisible by it, and sequence lengths too.",
        remedy="All ranks of a group get the same samples, each its part (UlyssesSPDataLoaderAdapter); the loss is "
        "averaged over them with weights.",
        evidence=(
            "deepspeed.runtime.config.DeepSpeedConfig.__init__",
            "deepspeed.runtime.sequence_parallel.ulysses_sp",
        ),
    ),
    Fact(
        id="at_config_init",
        names=(
            "deepspeed/runtime/config.py:_initialize_params",
            "deepspeed/runtime/config_utils.py:__init__",
            "deepspeed/runtime/config_utils.py:dict_raise_error_on_duplicate_keys",
        ),
        title="the config is read here: a key or a value that this release does not take",
        what='Most likely "auto" where nothing filled it in, a key that the installed release does not have or that '
        "stands in another section, a number as text or with a fraction, a key that is written twice, or fp16 and bf16 "
        "both enabled. Keys at the top level that are misspelled are ignored silently.",
        remedy="`python -m dsfix check CONFIG` for the installed release; the last line of the traceback names the "
        "key.",
        evidence=("deepspeed.runtime.config.DeepSpeedConfig._initialize_params",),
    ),
)
