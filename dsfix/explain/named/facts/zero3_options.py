"""ZeRO-3's options: what is gathered, when, and what stays; ZeRO++ and MiCS."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_stage3_prefetch_bucket_size",
        names=(
            "stage3_prefetch_bucket_size",
            "prefetch_bucket_size",
        ),
        title="stage3_prefetch_bucket_size: how many elements ZeRO-3 gathers ahead",
        what="ZeRO-3 gathers about this many elements for the modules that followed last time. It must be an integer "
        '(since 0.15.0 a fraction is refused; "auto" of accelerate before 0.31 makes one), and "auto" needs '
        "model.config.hidden_size. Where the order of modules changes (MoE, branches, generation) what was gathered "
        "ahead is in the way: parameters still in flight, before 0.15.3 an error.",
        remedy="5e7 (the default) or less to save memory; 0 switches it off, which helps where parameters are "
        "reported in flight.",
        patches=("zero3_inflight_params",),
        evidence=(
            "deepspeed.runtime.zero.partitioned_param_coordinator.PartitionedParameterCoordinator.fetch_sub_module",
        ),
    ),
    Fact(
        id="of_stage3_param_persistence_threshold",
        names=(
            "stage3_param_persistence_threshold",
            "stage3_model_persistence_threshold",
            "param_persistence_threshold",
            "model_persistence_threshold",
        ),
        title="stage3_param_persistence_threshold: small parameters stay on each GPU",
        what="A parameter of at most this many elements (1e5 by default, biases and norms) is gathered once and "
        'kept, in total up to stage3_model_persistence_threshold. They are never offloaded to the CPU or NVMe. "auto" '
        "of the Trainer is 10 * hidden_size.",
        remedy="Larger for speed, smaller for memory; 0 partitions all.",
        evidence=("deepspeed.runtime.zero.parameter_offload.DeepSpeedZeRoOffload.mark_persistent_parameters",),
    ),
    Fact(
        id="of_stage3_max_live_parameters",
        names=(
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "max_live_parameters",
            "max_reuse_distance",
        ),
        title="stage3_max_live_parameters, stage3_max_reuse_distance: what ZeRO-3 keeps gathered",
        what="Elements, per GPU: weights that are needed again within max_reuse_distance stay gathered, and nothing "
        "is gathered ahead beyond max_live_parameters (1e9 each, 2 GB in 16 bits). What a module needs now is gathered "
        "in any case, so that one huge layer (an embedding, experts of a leaf module) exceeds them. They need numbers: "
        '"auto" is not filled in.',
        remedy="1e8 or less to save memory, larger to use memory that is free; they say nothing of activations.",
        evidence=("deepspeed.runtime.zero.partitioned_param_coordinator.PartitionedParameterCoordinator",),
    ),
    Fact(
        id="of_stage3_gather_16bit_weights",
        names=(
            "stage3_gather_16bit_weights_on_model_save",
            "stage3_gather_fp16_weights_on_model_save",
            "gather_16bit_weights_on_model_save",
            "zero3_save_16bit_model",
        ),
        beside=(
            "saving",
            "loading",
            "checkpoint",
            "empty",
            "incomplete",
            "hang",
            "oom",
            "memory",
            "slow",
            "how",
            "fails",
            "adapter",
        ),
        title="stage3_gather_16bit_weights_on_model_save: the whole model on saving, with ZeRO-3",
        what="Off by default: save_16bit_model then writes nothing, the Trainer leaves only global_step…, and "
        "accelerate's get_state_dict refuses. With true all ranks gather the weights, layer by layer, into the host "
        "memory of rank 0: all ranks must call it (else it hangs), and rank 0's host needs the whole model. "
        "torch.save, save_pretrained without state_dict and save_checkpoint do not look at it.",
        remedy="true, with trainer.save_model, engine.save_16bit_model or accelerator.get_state_dict on all ranks; "
        "from a checkpoint: zero_to_fp32.py. With accelerate: zero3_save_16bit_model.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine.save_16bit_model",),
    ),
    Fact(
        id="of_sub_group_size",
        names=("sub_group_size",),
        title="sub_group_size: ZeRO-3's optimizer works in portions",
        what="Elements of a rank's partition that are updated at a time (1e9 by default): a smaller one lowers the "
        "peak of the step, whose fp32 gradients are made for one portion, and with NVMe the size of its buffers; a "
        "larger one is faster. Checkpoints depend on it (universal checkpoints of several portions need 0.18.0). "
        '"auto" is not filled in.',
        remedy="1e8 or less if memory is short in the step, or for offload_optimizer.ratio; the same value when you "
        "resume.",
        patches=(
            "universal_checkpoint_subgroups",
            "universal_checkpoint_load_subgroups",
        ),
        evidence=("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._create_fp16_sub_groups",),
    ),
    Fact(
        id="of_override_module_apply",
        names=("override_module_apply",),
        title="override_module_apply: module.apply() gathers parameters under zero.Init",
        what="While zero.Init is active, module.apply(f) gathers each module's parameters before f, takes those of "
        "rank 0 for all ranks and partitions them afterwards (true, the default), so that an initialization reaches "
        "them. With false f sees empty ones.",
        remedy="Leave it true; slow initialization of a large model goes away with weights that are loaded rather "
        "than initialized.",
        evidence=("deepspeed.runtime.zero.partition_parameters.InsertPostInitMethodToModuleSubClasses",),
    ),
    Fact(
        id="of_stage3_module_granularity_threshold",
        names=(
            "stage3_module_granularity_threshold",
            "module_granularity_threshold",
        ),
        title="stage3_module_granularity_threshold: modules with many small parts are gathered as one",
        what="Since 0.16.0: modules whose elements per submodule are at most this number become leaf modules, whose "
        "parameters are gathered together. Below the smallest value of the model it has no effect, and a warning names "
        "that value. Larger leaf modules take more memory at a time.",
        remedy="The value of the warning or a little more; or set_z3_leaf_modules(model, [class]) for the class "
        "itself.",
        affects={"deepspeed": ">=0.16.0"},
        evidence=("deepspeed.runtime.zero.parameter_offload.DeepSpeedZeRoOffload",),
    ),
    Fact(
        id="of_stage3_use_all_reduce_for_fetch_params",
        names=(
            "stage3_use_all_reduce_for_fetch_params",
            "use_all_reduce_for_fetch_params",
        ),
        title="stage3_use_all_reduce_for_fetch_params: known to be wrong in several releases",
        what="Each rank puts its part of the weights into a buffer of zeros, and these are summed. 0.16.3 to 0.17.2 "
        "fail in the first forward pass, and through 0.19.3 the padding of a parameter that the ranks do not divide "
        "is added to the next one: wrong weights.",
        remedy="Leave it false, or DeepSpeed 0.19.4 or later.",
        affects={"deepspeed": ">=0.14.3"},
        patches=(
            "zero3_allreduce_fetch_padding",
            "zero3_allreduce_fetch_wait",
        ),
        evidence=("deepspeed.runtime.zero.partition_parameters",),
    ),
    Fact(
        id="of_stage3_allgather_sequential",
        names=(
            "stage3_allgather_sequential",
            "zero_allgather_sequential",
        ),
        title="stage3_allgather_sequential: parameters are gathered one by one",
        what="Since 0.18.5: no common buffer for several parameters, which lowers the peak of memory, at the price of "
        "more collectives; only one parameter is gathered ahead (stage3_prefetch_bucket_size becomes 1).",
        remedy="Only where gathering runs out of memory.",
        affects={"deepspeed": ">=0.18.5"},
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_zero_optimizer",),
    ),
    Fact(
        id="of_log_trace_cache_warnings",
        names=("log_trace_cache_warnings",),
        title="log_trace_cache_warnings: ZeRO-3's notes about the order of modules",
        what="Since 0.16.4 the warning that the trace cache is invalidated is only shown with this key. It says that "
        "a pass ran the modules in another order than the one before (evaluation, generation, MoE): harmless, but "
        "prefetching is off for that pass.",
        remedy="Leave it false, the default; in older releases ignore the warning.",
        evidence=("deepspeed.runtime.zero.partitioned_param_coordinator",),
    ),
    Fact(
        id="of_zero_hpz_partition_size",
        names=("zero_hpz_partition_size",),
        title="zero_hpz_partition_size (ZeRO++): a second copy of the weights within a node",
        what="The number of GPUs of a node (it must divide the ranks): each node keeps a second, partitioned copy, "
        "which takes memory. Through 0.13.1 the backward pass uses old weights, in 0.13.0 to 0.13.4 it can read parts "
        "that are not written yet or never, 0.13.2 to 0.18.2 do not use weights that are loaded later, and since "
        "0.13.0 a second zero.Init is refused. Within one node it gains nothing.",
        remedy="0.18.3 or later; 1 (off, the default) on one node, or with several models in a process.",
        patches=(
            "hpz_stale_secondary",
            "hpz_second_copy_read_early",
            "hpz_second_copy_partly_written",
            "hpz_second_init",
            "hpz_stale_frozen",
        ),
        evidence=("deepspeed.utils.groups._create_zero_param_parallel_group",),
    ),
    Fact(
        id="of_zero_quantized_weights",
        names=("zero_quantized_weights",),
        title="zero_quantized_weights (ZeRO++): weights are sent in 8 bits",
        what="Weights are quantized for gathering, so the model computes with rounded weights; each rank's part of a "
        "weight must be a multiple of 8 elements (with 24 GPUs some are not). With bf16 it makes garbage of them "
        "through 0.19.5; torch_autocast refuses it; it needs the compiled operator quantizer.",
        remedy="fp16, or DeepSpeed 0.19.6 or later; off tells whether the loss is due to it.",
        evidence=("deepspeed.runtime.zero.partition_parameters.CUDAQuantizer",),
    ),
    Fact(
        id="of_zero_quantized_nontrainable_weights",
        names=("zero_quantized_nontrainable_weights",),
        title="zero_quantized_nontrainable_weights: frozen weights are stored in 8 bits",
        what="With ZeRO-3 frozen weights (LoRA's base model) are kept quantized, which halves them. The model must "
        "be frozen before it is partitioned: a parameter that zero.Init partitions while it requires a gradient stays "
        "as it is.",
        remedy="Set requires_grad before deepspeed.initialize partitions the model; QLoRA of bitsandbytes is another "
        "way.",
        evidence=("deepspeed.runtime.zero.partition_parameters",),
    ),
    Fact(
        id="of_zero_quantized_gradients",
        names=(
            "zero_quantized_gradients",
            "zeropp_loco_param",
        ),
        title="zero_quantized_gradients (ZeRO++): gradients are sent in 4 bits",
        what="It works with ZeRO-3 and reduce_scatter over several nodes (on one node nothing is quantized), with as "
        "many ranks per node as torch sees GPUs there (else an assertion may say: num_gpus not equal to device per "
        "node), and loses precision. zeropp_loco_param (0.16.2 to 0.19.7), which corrects its error, is refused since "
        "0.19.8.",
        remedy="Use all GPUs of each node, or limit them by CUDA_VISIBLE_DEVICES; off if the loss gets worse.",
        evidence=("deepspeed.utils.groups._get_local_all_to_all_group",),
    ),
    Fact(
        id="of_mics_shard_size",
        names=(
            "mics_shard_size",
            "mics_hierarchical_params_gather",
            "MiCS_Init",
        ),
        title="mics_shard_size: MiCS, ZeRO-3 within groups of GPUs",
        what="A model that was built under zero.Init (as by the Trainer's from_pretrained with stage 3) does not go "
        "with it: deepspeed.zero.MiCS_Init, or none. Ranks must be a multiple of the size. With torch 2.1 or later "
        "weights are garbage or nan through 0.19.6, as a gathering is not waited for. 0.19.7 removed MiCS and refuses "
        "the keys.",
        remedy="zero_hpz_partition_size of ZeRO++ instead.",
        patches=("mics_gather_not_waited",),
        evidence=(
            "deepspeed.runtime.zero.mics",
            "https://github.com/deepspeedai/DeepSpeed/issues/8489",
        ),
    ),
)
