"""Functions of ZeRO in which errors arise: what they do, and what makes them fail."""

from __future__ import annotations

from ..fact import Fact


def _frames(file: str, *functions: str) -> tuple[str, ...]:
    return tuple(f"deepspeed/runtime/zero/{file}.py:{function}" for function in functions)


FACTS = (
    Fact(
        id="frame_zero12_made",
        names=_frames(
            *(
                "stage_1_and_2",
                "__init__",
                "flatten_dense_tensors_aligned",
                "_round_robin_reorder",
                "initialize_optimizer_states",
            ),
            *("_create_param_mapping", "_link_all_hp_params", "_configure_moe_settings"),
        ),
        title="ZeRO-1/2 flattens the parameters and allocates its copies",
        what="Each group is copied into one flat buffer, by way of the host (since 0.18.7 on the GPU, if it has the "
        "room), and this rank's part once more in fp32, with offload on the host; before 0.13.2 Adam's states are "
        "allocated as well. So the GPU's memory ends here, or the host's pinned memory; a group whose parameters are "
        "all frozen fails (since 0.18.7: list index out of range).",
        remedy="offload_optimizer or ZeRO-3 if the GPU's memory ends, pin_memory false if it is the host's; leave out "
        "groups whose parameters are all frozen.",
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
        what="With ZeRO-2 or overlap_comm it runs in a hook of each parameter during the backward pass, else after it. "
        "It fails after loss.backward() instead of engine.backward (before 0.18.3), where a parameter gets its "
        "gradient twice (a module used twice with reentrant checkpointing), or gradients are sent in another dtype "
        "(0.17.2 to 0.18.1); ranks that use different parameters wait; CUDA and NCCL errors of before show up here.",
        remedy="engine.backward; use_reentrant=False for checkpointing; the same modules on all ranks. "
        "CUDA_LAUNCH_BLOCKING=1 shows where a CUDA error arises; overlap_comm false rules out its races.",
        patches=(
            "zero12_full_bucket_dtype",
            "zero12_parameter_larger_than_bucket",
            "zero12_overlap_bucket_refilled",
            "zero12_empty_parameter",
        ),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads",),
    ),
    Fact(
        id="frame_zero12_partition",
        names=_frames(
            *("stage_1_and_2", "get_flat_partition", "independent_gradient_partition_epilogue", "get_all_grad_tensors"),
            *("get_grad_norm_direct", "scaled_global_norm", "complete_grad_norm_calculation_for_cpu_offload"),
        ),
        title="ZeRO-1/2 collects this rank's gradients and their norm",
        what="After a backward pass the gradients of this rank's partition are put together, in the step their norm is "
        "computed. Without offload, several passes at the accumulation boundary before one step add up through 0.17.5; "
        "later mostly only the last one counts, or (0.17.6 to 0.18.2) the next one fails. A None or KeyError in "
        "scaled_global_norm mostly means that no backward pass went before the step.",
        remedy="One engine.backward before each engine.step, of the sum of the losses, or gradient_accumulation_steps "
        "for several.",
        patches=("zero12_several_backwards_drop",),
        evidence=("deepspeed/runtime/zero/stage_1_and_2.py: independent_gradient_partition_epilogue",),
    ),
    Fact(
        id="frame_zero12_offload",
        names=_frames(
            *("stage_1_and_2", "async_inplace_copy_grad_to_fp32_buffer_from_gpu", "copy_grads_in_partition"),
            *("async_accumulate_grad_in_cpu_via_gpu", "set_norm_for_param_grad_in_gpu", "copy_gradients_to_cpu"),
        ),
        title="ZeRO-1/2 with offload copies gradients to the host",
        what="Each gradient of this rank's partition goes to the host: at the accumulation boundary into the fp32 "
        "buffer, before it into a second copy of the gradients, pinned with pin_memory, for which the host needs "
        "memory. CUDA errors of the backward pass often show up in these copies, and a gradient that is missing (None) "
        "fails here.",
        remedy="CUDA_LAUNCH_BLOCKING=1 shows where a CUDA error arises. pin_memory false or fewer ranks per host, if "
        "the host's memory ends.",
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
        what="In fp16 it asks all ranks for an overflow, then it computes the norm, updates this rank's fp32 partition "
        "and gathers the weights. It is the first to wait for the backward pass, so that CUDA errors and ranks that "
        "have gone (timeouts) show up in it; a step without a backward pass fails in the norm or check (a None or "
        "KeyError). Since 0.13.2 the first update allocates Adam's states.",
        remedy="The first error of all ranks' logs, CUDA_LAUNCH_BLOCKING=1. Memory in the first step: "
        "offload_optimizer. engine.step only after engine.backward.",
        evidence=(
            "deepspeed/runtime/zero/stage_1_and_2.py: step",
            "deepspeed/runtime/zero/stage3.py: _get_norm_groups",
        ),
    ),
    Fact(
        id="frame_zero_linking",
        names=(
            "deepspeed/utils/tensor_fragment.py:get_hp_fragment_mapping",
            "deepspeed/utils/mixed_precision_linkage.py:link_hp_params",
            "deepspeed/utils/mixed_precision_linkage.py:_init_lp_to_hp_mapping",
        ),
        title="ZeRO-1/2 and BF16_Optimizer link 16-bit parameters to their fp32 partition",
        what="It finds the part of each parameter in this rank's partition. Through 0.19.5 it fails (fragment start "
        "should be < fragment_end) for a trainable parameter without elements, as layers of width 0 and placeholders "
        "have.",
        remedy="requires_grad False for parameters of size 0 before deepspeed.initialize, or leave them out of the "
        "optimizer.",
        patches=("zero12_empty_parameter",),
        affects={"deepspeed": "<0.19.6"},
        evidence=("deepspeed/utils/tensor_fragment.py: get_hp_fragment_mapping",),
    ),
    Fact(
        id="frame_zero3_made",
        names=(
            *_frames("stage3", "__init__", "defragment", "_create_fp16_partitions_with_defragmentation"),
            *_frames("stage3", "_create_fp32_partitions", "_setup_for_real_optimizer", "initialize_optimizer_states"),
            *_frames("stage3", "initialize_ds_offload", "_create_fp16_sub_groups", "_move_to_flat_buffer"),
            *_frames("stage3", "_create_param_groups_fp16_flat_cpu_memory"),
            *_frames("utils", "defragment"),
        ),
        title="ZeRO-3 moves the partitions into flat buffers and allocates its copies",
        what="The partitions of all trainable parameters go to one buffer, by way of the host (or stay there, with "
        "offload_param), and fp32 copies are made by sub-groups of sub_group_size elements. Memory ends here on the "
        "GPU, on the host, or for pinned buffers (a CUDA error or killed process); trainable parameters of several "
        "dtypes fail (an AssertionError in defragment).",
        remedy="One dtype for all trainable parameters; pin_memory false, sub_group_size 1e8, or fewer ranks per host "
        "if the host's memory ends.",
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
        "bucket (a module used twice with reentrant checkpointing, a second loss.backward() before 0.18.3), or its "
        "gradient is missing or has not the parameter's size (replaced weights). Ranks that use different parameters "
        "wait for each other; NCCL timeouts and CUDA errors of the backward pass appear here.",
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
        what="For each sub-group the gradients are flattened to fp32, the states fetched from NVMe (if they are "
        "there), and the update is made and written back. It needs memory for the fp32 gradients of one sub-group and "
        "what the optimizer uses meanwhile; with NVMe the host holds buffer_count (4) buffers for the largest "
        "sub-group in fp32.",
        remedy="A smaller sub_group_size if memory ends in the step.",
        evidence=("deepspeed/runtime/zero/stage3.py: step",),
    ),
    Fact(
        id="frame_zero3_fetch",
        names=_frames(
            *("partitioned_param_coordinator", "fetch_sub_module", "_fetch_sub_module_impl", "__all_gather_params"),
            *("__all_gather_params_", "trace_prologue", "record_module", "record_parameters", "iter_params"),
        ),
        title="ZeRO-3 gathers a module's parameters before it runs",
        what="All ranks have to run the same modules in the same order, else they wait for each other; prefetching "
        "follows the order of the step before. It fails on parameters that were not partitioned (added later: no ds_… "
        "attributes), that another thread, backward pass or exception has left half gathered (the message has their "
        "status), and where memory ends for what is gathered.",
        remedy="stage3_prefetch_bucket_size 0 tells whether it is the prefetching; set_z3_leaf_modules for experts; "
        "smaller stage3_max_live_parameters for memory.",
        patches=("zero3_empty_parameter", "zero3_second_backward_fetch", "zero3_inflight_params"),
        evidence=("deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",),
    ),
    Fact(
        id="frame_zero_init",
        names=_frames(
            *("partition_parameters", "_post_init_method", "_zero_init_param", "_convert_to_zero_parameters"),
            "_convert_to_deepspeed_param",
        ),
        title="zero.Init moves, broadcasts and partitions a module's parameters",
        what="It runs at the end of each module's __init__, or in deepspeed.initialize for what was made without "
        "zero.Init: each parameter is moved whole to this rank's GPU and broadcast from the first rank, often the "
        "first NCCL operation of the job. It fails where NCCL or the GPU is not set up, or parameters are on the meta "
        "device; ranks that construct different models wait for each other.",
        remedy="NCCL_DEBUG=INFO; the same model on all ranks; low_cpu_mem_usage false and no device_map.",
        patches=("zero_init_stays_on", "zero_init_skip_init_stays_on"),
        evidence=("deepspeed/runtime/zero/partition_parameters.py: Init._post_init_method",),
    ),
    Fact(
        id="frame_zero3_gathering",
        names=_frames(
            *(
                "partition_parameters",
                "_all_gather_dtype",
                "_all_gather_coalesced",
                "all_gather_coalesced",
                "_all_gather",
            ),
            *("_allgather_params_coalesced", "_allgather_param", "_all_gather_sequential", "_dist_allgather_fn"),
            *("_ensure_availability_of_partitioned_params", "all_gather"),
        ),
        title="ZeRO-3 allocates a buffer and gathers parameters",
        what="A buffer for all parameters of one call is allocated, this rank's parts are copied into it, and the "
        "ranks exchange theirs: all ranks need the same call, the GPU the memory for the buffer, and NVMe's files "
        "their place. Several dtypes in one call fail: of a module through 0.12.2, of a GatheredParameters through "
        "0.19.2, and where only some of a module's weights were cast after partitioning.",
        remedy="One dtype for all weights; stage3_prefetch_bucket_size and stage3_max_live_parameters smaller if "
        "memory ends; the other ranks' logs for NCCL errors.",
        evidence=("deepspeed/runtime/zero/partition_parameters.py: Init._convert_to_deepspeed_param",),
    ),
    Fact(
        id="frame_gathered_context",
        names=_frames("partition_parameters", "__enter__", "__exit__", "_exit"),
        title="GatheredParameters or zero.Init is entered or left",
        what="Entering GatheredParameters gathers; leaving it broadcasts from modifier_rank, if one is given, and "
        "partitions again: parameters that were moved to the CPU or resized fail there, and a rank that does not take "
        "part makes the others wait. Changes without modifier_rank are dropped, by default without a message. It is "
        "left after an error in its block as well, and may hang then.",
        remedy="Change values in place, on the GPU, with modifier_rank=0, on all ranks; look for an error of the block "
        "itself.",
        evidence=("deepspeed/runtime/zero/partition_parameters.py: GatheredParameters.__exit__",),
    ),
    Fact(
        id="frame_zero3_module_hooks",
        names=(
            *_frames("parameter_offload", "_post_forward_module_hook", "_pre_backward_module_hook"),
            *_frames("parameter_offload", "_post_backward_module_hook", "_apply_to_tensors_only", "__getitem__"),
            *_frames("parameter_offload", "_register_deepspeed_module", "setup_zero_stage3_hooks"),
            *_frames("parameter_offload", "mark_persistent_parameters", "_inject_parameters"),
            *_frames("utils", "apply_to_tensors_only"),
        ),
        title="ZeRO-3's hooks of a module",
        what="They look for tensors in a module's inputs and outputs, which have to be tensors, tuples, lists, dicts "
        "or objects with attributes, and find parameters that another module uses. They fail on other outputs "
        "(numbers, strings, objects without __dict__, lists of a class with another constructor), and on parameters "
        "that were added to a module after deepspeed.initialize.",
        remedy="Return tensors, tuples or dicts from sub-modules; change the model before deepspeed.initialize.",
        patches=("zero3_scalar_output_hook", "zero3_output_object_warning"),
        evidence=("deepspeed/runtime/zero/parameter_offload.py: _register_deepspeed_module",),
    ),
    Fact(
        id="frame_zero3_linear",
        names=_frames("linear", "forward", "backward", "zero3_linear_wrap"),
        title="a linear layer in DeepSpeed's replacement of functional.linear",
        what="zero.Init has replaced torch.nn.functional.linear by it. What fails is the matrix product: input and "
        "weight of different dtypes (fp32 inputs into 16-bit weights), a weight that is not gathered (size 0) or is "
        "quantized, or the model's own shapes.",
        remedy='Cast the input to the weight\'s dtype; call the engine, not the model; "memory_efficient_linear": '
        "false gives torch's function.",
        patches=("zero3_bias_only_linear",),
        evidence=("deepspeed/runtime/zero/linear.py: LinearFunctionForZeroStage3",),
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
        what="A parameter that is still in use, half gathered, or of another size than it was is refused: after a "
        "forward pass that ended in an exception, with GatheredParameters inside a forward pass, a module that several "
        "passes share, or (through 0.15.2) when the modules run in another order than before. reset_step also compares "
        "the ranks' order of modules.",
        remedy="After an exception that was caught: engine.empty_partition_cache() on all ranks (0.15.3 and later). "
        "GatheredParameters outside of forward passes; torch.no_grad() for passes without backward.",
        patches=("zero3_inflight_params", "zero3_no_grad_call_keeps_gathered"),
        evidence=("deepspeed/runtime/zero/partition_parameters.py: free_param",),
    ),
)
