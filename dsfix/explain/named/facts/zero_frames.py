"""Functions of ZeRO in which errors arise: what they do, and what makes them fail."""

from __future__ import annotations

from ..fact import Fact


def _frames(file: str, *functions: str) -> tuple[str, ...]:
    return tuple(f"deepspeed/runtime/zero/{file}.py:{function}" for function in functions)


FACTS = (
    Fact(
        id="frame_zero12_made",
        names=_frames(
            *("stage_1_and_2", "flatten_dense_tensors_aligned", "_round_robin_reorder", "initialize_optimizer_states"),
            *("_create_param_mapping", "_link_all_hp_params", "_configure_moe_settings"),
        ),
        title="ZeRO-1/2 flattens the parameters and allocates its copies",
        what="Each group is copied into one flat buffer, in pieces through the host, and this rank's part once more "
        "in fp32; Adam's states follow in initialize_optimizer_states. So the GPU's memory ends here (or the host's "
        "pinned memory, with offload), and groups must have one dtype, and trainable parameters.",
        remedy="offload_optimizer or ZeRO-3 if memory ends; remove groups whose parameters are all frozen.",
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: DeepSpeedZeroOptimizer.__init__",),
    ),
    Fact(
        id="frame_zero12_reduction",
        names=_frames(
            *("stage_1_and_2", "reduce_independent_p_g_buckets_and_remove_grads", "reduce_ipg_grads", "average_tensor"),
            *(
                "allreduce_and_scatter",
                "allreduce_bucket",
                "process_gradients",
                "reduce_ready_partitions_and_remove_grads",
            ),
            *("gradient_reduction_w_predivide", "allreduce_and_copy_with_multiple_ranks", "grad_handling_hook"),
        ),
        title="ZeRO-1/2 puts a gradient into its bucket and reduces it",
        what="It runs in a hook of each parameter during the backward pass. It fails where a parameter gets its "
        "gradient twice (reused modules with reentrant checkpointing, two backward passes), where gradients have "
        "another dtype than the bucket, or ranks use different parameters; CUDA and NCCL errors of before show up "
        "here as well.",
        remedy="use_reentrant=False for checkpointing, one backward per step, the same modules on all ranks. "
        "CUDA_LAUNCH_BLOCKING=1 shows where a CUDA error arises; overlap_comm false rules out its races.",
        patches=("zero12_full_bucket_dtype", "zero12_parameter_larger_than_bucket", "zero12_overlap_bucket_refilled"),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads",),
    ),
    Fact(
        id="frame_zero12_partition",
        names=_frames(
            *("stage_1_and_2", "get_flat_partition", "independent_gradient_partition_epilogue", "get_all_grad_tensors"),
            *("get_grad_norm_direct", "scaled_global_norm", "complete_grad_norm_calculation_for_cpu_offload"),
        ),
        title="ZeRO-1/2 collects this rank's gradients and their norm",
        what="After the backward pass the gradients of this rank's partition are flattened; without an update between "
        "they are added in a second buffer. Parameters that the loss did not use count as zeros (or raise, with "
        "offload and ignore_unused_parameters false). A None here means that no backward pass went before the step.",
        remedy="engine.backward before each engine.step, all trainable parameters in the loss, and one engine per "
        "model.",
        patches=("zero12_several_backwards_drop", "zero12_empty_parameter"),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: independent_gradient_partition_epilogue",),
    ),
    Fact(
        id="frame_zero12_offload",
        names=_frames(
            *("stage_1_and_2", "async_inplace_copy_grad_to_fp32_buffer_from_gpu", "copy_grads_in_partition"),
            *("async_accumulate_grad_in_cpu_via_gpu", "set_norm_for_param_grad_in_gpu", "copy_gradients_to_cpu"),
        ),
        title="ZeRO-1/2 with offload copies gradients to the host",
        what="Each gradient of this rank's partition is copied into the fp32 buffer on the host during the backward "
        "pass. It fails where a parameter was not in the optimizer when the engine was made (KeyError), where its "
        "gradient is missing, or where a CUDA error of before shows up.",
        remedy="Do not change requires_grad or the model after deepspeed.initialize; CUDA_LAUNCH_BLOCKING=1.",
        patches=("zero12_offload_left_out_gradients", "zero2_offload_accumulation_drops"),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: copy_grads_in_partition",),
    ),
    Fact(
        id="frame_zero_step",
        names=(
            *_frames("stage_1_and_2", "step", "_optimizer_step", "has_overflow", "unscale_and_clip_grads"),
            *_frames(
                "stage3", "_optimizer_step", "has_overflow", "_overflow_check_and_loss_scale_update", "_get_norm_groups"
            ),
        ),
        title="ZeRO's step: overflow, norm, update",
        what="It asks all ranks for an overflow, computes the norm, updates this rank's fp32 partition and gathers "
        "the weights. The check for an overflow is the first thing that waits for the backward pass, so that CUDA "
        "errors and ranks that have gone (timeouts) show up in it. The first update allocates Adam's states, unless "
        "they were made before.",
        remedy="The first error of all ranks' logs, CUDA_LAUNCH_BLOCKING=1. Memory in the first step: "
        "offload_optimizer.",
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: step",),
    ),
    Fact(
        id="frame_zero_linking",
        names=(
            "deepspeed/utils/tensor_fragment.py:get_hp_fragment_mapping",
            "deepspeed/utils/mixed_precision_linkage.py:link_hp_params",
            "deepspeed/utils/mixed_precision_linkage.py:_init_lp_to_hp_mapping",
        ),
        title="ZeRO-1/2 links 16-bit parameters to their fp32 partition",
        what="It fails on a parameter without elements, or one that is not in this rank's partition as computed: "
        "empty parameters, a model on one rank that differs from another's, or groups that changed in between.",
        remedy="Remove parameters of size 0 from the optimizer; the same model on all ranks.",
        patches=("zero12_empty_parameter",),
        evidence=("deepspeed/utils/tensor_fragment.py: get_hp_fragment_mapping",),
    ),
    Fact(
        id="frame_zero3_made",
        names=_frames(
            *("stage3", "defragment", "_create_fp16_partitions_with_defragmentation", "_create_fp32_partitions"),
            *("_setup_for_real_optimizer", "initialize_optimizer_states", "initialize_ds_offload"),
            *("_create_fp16_sub_groups", "_move_to_flat_buffer", "_create_param_groups_fp16_flat_cpu_memory"),
        ),
        title="ZeRO-3 moves the partitions into flat buffers and allocates its copies",
        what="All partitions go to one buffer, by way of the host (or stay there, with offload_param), and fp32 "
        "copies are made by sub-groups of sub_group_size elements. Memory ends here on the GPU, the host, or for "
        "pinned buffers (a CUDA error or killed process); partitions must have one dtype, so that mixed or quantized "
        "weights fail.",
        remedy="One dtype for all parameters that are partitioned; pin_memory false, sub_group_size 1e8, or fewer "
        "ranks per host if the host's memory ends.",
        evidence=("deepspeed/runtime/zero/stage3.py: _create_fp16_partitions_with_defragmentation",),
    ),
    Fact(
        id="frame_zero3_reduction",
        names=_frames(
            *("stage3", "__reduce_and_partition_ipg_grads", "__add_grad_to_ipg_bucket", "partition_grads"),
            *("__avg_scatter_grads", "__avg_scatter_contiguous_grads", "reduce_ready_partitions_and_remove_grads"),
            *("reduce_independent_p_g_buckets_and_remove_grads", "independent_gradient_partition_epilogue"),
            *("overlapping_partition_gradients_reduce_epilogue", "reduce_partition_and_remove_grads"),
        ),
        title="ZeRO-3 reduces the gradients of a bucket and keeps this rank's part",
        what="It runs in hooks during the backward pass, and once after it. It fails where a parameter is twice in a "
        "bucket (shared modules, two backward passes), where its gradient has not the parameter's size (replaced "
        "weights), where a parameter got no gradient on one rank only, and it is where NCCL timeouts and CUDA errors "
        "of the backward pass appear.",
        remedy="The same modules in the loss on all ranks, use_reentrant=False, set_z3_leaf_modules for experts.",
        patches=("zero3_left_out_gradients", "zero3_autocast_tied_gradients"),
        evidence=("deepspeed/runtime/zero/stage3.py: __reduce_and_partition_ipg_grads",),
    ),
    Fact(
        id="frame_zero3_sub_group",
        names=_frames(
            *("stage3", "_prepare_fp32_grad_for_sub_group", "_prepare_sub_group", "_release_sub_group"),
            *("_optimizer_states_and_gradient_swap_in", "_optimizer_states_and_gradient_swap_out"),
            *("_reassign_or_swap_out_partitioned_parameters", "_unflatten_partitioned_parameters"),
        ),
        title="ZeRO-3 updates one sub-group of parameters",
        what="For each sub-group the gradients are flattened to fp32, the states fetched (from NVMe, with it), and "
        "the update made and written back. No gradients here (a KeyError or None) means a step without a backward "
        "pass since the last one; memory needed is some 16 bytes times sub_group_size.",
        remedy="engine.step() after engine.backward only; a smaller sub_group_size if memory ends in the step.",
        evidence=("deepspeed/runtime/zero/stage3.py: step",),
    ),
    Fact(
        id="frame_zero3_fetch",
        names=_frames(
            *("partitioned_param_coordinator", "fetch_sub_module", "_fetch_sub_module_impl", "__all_gather_params"),
            *("__all_gather_params_", "trace_prologue", "record_module", "record_parameters", "iter_params"),
        ),
        title="ZeRO-3 gathers a module's parameters before it runs",
        what="All ranks have to run the same modules in the same order, and prefetching follows the order of the step "
        "before. It fails where parameters have several dtypes, one was not partitioned (added later, no ds_… "
        "attributes), the module runs in two threads or inside another backward pass, or where memory ends for what "
        "is gathered.",
        remedy="stage3_prefetch_bucket_size 0 tells whether it is the prefetching; set_z3_leaf_modules for experts; "
        "smaller stage3_max_live_parameters for memory.",
        patches=("zero3_empty_parameter", "zero3_second_backward_fetch", "zero3_inflight_params"),
        evidence=("deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",),
    ),
    Fact(
        id="frame_zero3_release",
        names=(
            *_frames("partitioned_param_coordinator", "release_sub_module", "release_and_reset_all", "reset_step"),
            *_frames("partitioned_param_coordinator", "__release_param", "_clean_inflight_param_registry"),
            *_frames("parameter_offload", "partition_all_parameters"),
            *_frames("partition_parameters", "free_param", "_partition_param", "_partition"),
        ),
        title="ZeRO-3 releases parameters after a module, or at the end of a step",
        what="A parameter that is still in use, being gathered, or of another size than it was is refused: a forward "
        "pass that ended in an exception or was not followed by a backward pass, generation in between, a shared "
        "module, weights written under GatheredParameters without modifier_rank. reset_step also compares the ranks' "
        "order of modules.",
        remedy="After an exception that was caught: engine.empty_partition_cache() on all ranks. torch.no_grad() and "
        "eval() for passes without backward.",
        patches=("zero3_inflight_params", "zero3_no_grad_call_keeps_gathered"),
        evidence=("deepspeed/runtime/zero/partition_parameters.py: free_param",),
    ),
)
