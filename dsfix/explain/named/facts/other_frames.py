"""DeepSpeed's other functions in which errors arise: half precision, schedulers, files, checkpointing, NVMe."""

from __future__ import annotations

from ..fact import Fact

_CHECKPOINTING = "deepspeed/runtime/activation_checkpointing/checkpointing.py"
_SWAP = "deepspeed/runtime/swap_tensor"


def _swapping(file: str, *functions: str) -> tuple[str, ...]:
    return tuple(f"{_SWAP}/{file}.py:{function}" for function in functions)


FACTS = (
    Fact(
        id="frame_bf16_step",
        names=(
            *("deepspeed/runtime/bf16_optimizer.py:step", "deepspeed/runtime/bf16_optimizer.py:_update_hp_grad"),
            *("deepspeed/runtime/bf16_optimizer.py:update_hp_grads", "deepspeed/runtime/bf16_optimizer.py:__init__"),
        ),
        title="BF16_Optimizer (bf16 with ZeRO-1 and fp32 accumulation, in pipelines, through 0.17.5 without ZeRO)",
        what="It keeps fp32 gradients of all parameters on each rank beside the partitioned weights: more memory than "
        "ZeRO-1 has otherwise. Through 0.19.7 its step asserts a norm above 0, so that gradients that are all zero, or "
        "one that is inf or nan, end the job there; a step without a backward pass fails, too.",
        remedy="Look for the nan in the loss; engine.backward before each step. Outside of pipelines ZeRO-2 takes "
        "another optimizer.",
        patches=("bf16_nonfinite_step_ends_job", "bf16_zero1_last_microbatch_local"),
        evidence=("deepspeed/runtime/bf16_optimizer.py: step",),
    ),
    Fact(
        id="frame_fp16_step",
        names=(
            *("deepspeed/runtime/fp16/fused_optimizer.py:step", "deepspeed/runtime/fp16/unfused_optimizer.py:step"),
            "deepspeed/runtime/fp16/fused_optimizer.py:step_fused_adam",
            "deepspeed/runtime/fp16/unfused_optimizer.py:step_fused_lamb",
        ),
        title="fp16 (since 0.17.6 also bf16) without ZeRO: the optimizer's step",
        what="It copies the gradients to fp32, looks for an overflow, clips and updates, all on each rank: with Adam "
        "some 16 bytes per parameter, 20 while it runs. A missing gradient is taken as zeros. CUDA errors of the "
        "passes before show up at the check for an overflow.",
        remedy="ZeRO-1 or 2, which divide the states, if memory ends; bf16 if all steps overflow.",
        patches=("fp16_unfused_norm_scaled",),
        evidence=("deepspeed/runtime/fp16/fused_optimizer.py: step",),
    ),
    Fact(
        id="frame_fp16_scaled_backward",
        names=("deepspeed/runtime/fp16/loss_scaler.py:backward",),
        title="ZeRO's backward pass of the scaled loss (through 0.18.2)",
        what="ZeRO's optimizer multiplies the loss by its scale, 1 unless fp16, and calls its backward(): the error is "
        "autograd's, of the model's own operations or of the hooks that run meanwhile. The frames above name only who "
        "started it.",
        remedy="torch.autograd.set_detect_anomaly(True) shows the forward operation; CUDA_LAUNCH_BLOCKING=1 for a CUDA "
        "error.",
        affects={"deepspeed": "<0.18.3"},
        evidence=("deepspeed/runtime/fp16/loss_scaler.py (v0.18.2)",),
    ),
    Fact(
        id="frame_norms_and_gathering",
        names=(
            *("deepspeed/runtime/utils.py:all_gather_dp_groups", "deepspeed/runtime/utils.py:clip_grad_norm_"),
            *(
                "deepspeed/runtime/utils.py:all_gather_into_tensor_dp_groups",
                "deepspeed/runtime/utils.py:get_grad_norm",
            ),
            *("deepspeed/runtime/utils.py:get_global_norm_of_tensors", "deepspeed/runtime/utils.py:has_overflow"),
            "deepspeed/runtime/utils.py:check_using_norm",
        ),
        title="norms, overflow checks and the gathering of updated weights",
        what="These follow the update or stand before it. In most of them ranks meet, so that a rank that has ended or "
        "is late makes the others time out here, and they are the first to wait for the GPU, so that CUDA errors of "
        "the passes before show up.",
        remedy="The first error in the logs of all ranks; CUDA_LAUNCH_BLOCKING=1.",
        evidence=("deepspeed/runtime/utils.py",),
    ),
    Fact(
        id="frame_gradient_counting",
        names=(
            "deepspeed/runtime/utils.py:count_used_parameters_in_backward",
            "deepspeed/runtime/utils.py:register_output_backward_hooks",
            "deepspeed/runtime/utils.py:backward_hook",
            "deepspeed/runtime/base_optimizer.py:update_hook_state_and_maybe_run_epilogue",
            "deepspeed/runtime/base_optimizer.py:reenter_backward_if_needed",
            "deepspeed/runtime/base_optimizer.py:run_grad_acc_post_hooks",
        ),
        title="ZeRO finds out which gradients a backward pass brings (0.18.3 and later)",
        what="In the hook of a gradient it asks autograd, by internal functions of torch 2.3 and later, which "
        "parameters the running backward pass reaches, to know when all are reduced. An older torch raises an "
        "AssertionError here; with torch 2.3 and 2.4.0 0.18.3 to 0.18.6 fail (no attribute next_functions). What "
        "runs after the last gradient, such as the check for a scaled loss, passes through here.",
        remedy="torch 2.4.1 or later; engine.backward for the loss.",
        affects={"deepspeed": ">=0.18.3"},
        patches=("zero_backward_with_torch_2_3", "zero_hooks_recount_parameters"),
        evidence=("deepspeed/runtime/utils.py: count_used_parameters_in_backward",),
    ),
    Fact(
        id="frame_checkpoint_file_written",
        names=(
            "deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py:save",
            "deepspeed/runtime/checkpoint_engine/checkpoint_engine.py:makedirs",
        ),
        title="a file of a checkpoint is written",
        what="torch.save of one rank's file failed: a full disk or quota (which may say unexpected pos or inline "
        "container), a network file system that stalls, no right to write, or an object that cannot be pickled. The "
        "other ranks wait in a barrier; the directory stays incomplete while `latest` names the one before.",
        remedy="Room for all ranks' files, with Adam and 16-bit weights some 14 bytes per trained parameter; delete "
        "the incomplete directory.",
        evidence=("deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py: save",),
    ),
    Fact(
        id="frame_checkpoint_file_read",
        names=("deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py:load",),
        title="a file of a checkpoint is read",
        what="torch.load of one rank's file failed: it is missing or cut, was written with classes that are not "
        "importable here, torch 2.6 or later reads it with a DeepSpeed before 0.16.0 (weights_only), or the host has "
        "not the memory for the files of all ranks at once.",
        remedy="Compare the files' sizes among the ranks; an earlier global_step…; a current DeepSpeed.",
        evidence=("deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py: load",),
    ),
    Fact(
        id="deepspeed_checkpointing_functions",
        names=(
            *("checkpointing.configure", "deepspeed.checkpointing", "checkpointing.checkpoint"),
            *(f"{_CHECKPOINTING}:backward", f"{_CHECKPOINTING}:forward", f"{_CHECKPOINTING}:checkpoint"),
        ),
        title="deepspeed.checkpointing.checkpoint: what it needs",
        what="Its options (partition_activations, cpu_checkpointing) hold only after "
        "deepspeed.checkpointing.configure, which DeepSpeed itself never calls. Like torch's reentrant one it takes "
        "positional arguments only, needs one input that requires gradients, and works with backward() only, not with "
        "torch.autograd.grad; errors of the layer that it computes again pass through it.",
        remedy="deepspeed.checkpointing.configure(mpu, deepspeed_config=...) before; without these options "
        "torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
        evidence=(f"{_CHECKPOINTING}: checkpoint, configure",),
    ),
    Fact(
        id="activation_checkpointing_section",
        names=("activation_checkpointing",),
        title="the section activation_checkpointing checkpoints nothing by itself",
        what="It sets the options of deepspeed.checkpointing.checkpoint, which the model has to call (PipelineModule "
        "does, with activation_checkpoint_interval), and deepspeed.checkpointing.configure has to be given the config. "
        "transformers' gradient_checkpointing is torch's and ignores it.",
        remedy="model.gradient_checkpointing_enable() for transformers; torch.utils.checkpoint.checkpoint(..., "
        "use_reentrant=False) in one's own model.",
        beside=("oom", "how"),
        evidence=(f"{_CHECKPOINTING}: configure", "deepspeed/runtime/pipe/module.py"),
    ),
    Fact(
        id="contiguous_checkpointing_needs",
        names=("contiguous_memory_optimization", "contiguous_checkpointing", "number_checkpoints"),
        title="contiguous_memory_optimization of activation checkpointing",
        what="It allocates buffers for the partitioned inputs of number_checkpoints layers: it needs "
        "partition_activations, that number, and inputs of the same size in every layer. The buffers are emptied by "
        "the backward pass only, so that evaluation needs deepspeed.checkpointing.reset().",
        remedy="Leave it false, unless memory is fragmented; else configure(num_checkpoints=the layers that call "
        "checkpoint).",
        evidence=(f"{_CHECKPOINTING}: configure, reset",),
    ),
    Fact(
        id="frame_random_states",
        names=(f"{_CHECKPOINTING}:fork", f"{_CHECKPOINTING}:add", "get_cuda_rng_tracker"),
        title="random states for model-parallel checkpointing",
        what="deepspeed.checkpointing.get_cuda_rng_tracker().fork() needs the state model-parallel-rng (is not added), "
        "which model_parallel_cuda_manual_seed adds: it needs the mpu of configure and empties the tracker first. "
        "add() of a name or a seed that is there raises (already exists).",
        remedy="deepspeed.checkpointing.configure(mpu), then model_parallel_cuda_manual_seed(seed); another seed for "
        "each add().",
        evidence=(f"{_CHECKPOINTING}: CudaRNGStatesTracker",),
    ),
    Fact(
        id="frame_swapping",
        names=(
            *_swapping("utils", "swap_in_tensors", "swap_out_tensors"),
            *_swapping("async_swapper", "swap_out_tensors", "add_buffers", "_swap_out_ready_buffers"),
            *_swapping("partitioned_param_swapper", "__init__", "swap_in", "swap_out_and_release", "swap_into_buffer"),
            *_swapping("partitioned_param_swapper", "_allocate_and_return_buffers_for_swap_in", "synchronize_reads"),
            *_swapping("optimizer_utils", "_swap_out_unpinned_tensors"),
        ),
        title="offload to NVMe reads or writes a file of a parameter",
        what="It fails where nvme_path is not writable, full, or no local file system (tmpfs and network ones have no "
        "O_DIRECT), where buffer_size is less than the largest parameter's share, or buffer_count less than the "
        "parameters that are needed at once, and where pinned memory for the buffers ends.",
        remedy="A directory on a local NVMe disk; larger buffer_size and buffer_count, or offload to the CPU.",
        evidence=(f"{_SWAP}/partitioned_param_swapper.py",),
    ),
    Fact(
        id="frame_scheduler_step",
        names=(
            *("deepspeed/runtime/lr_schedules.py:step", "deepspeed/runtime/lr_schedules.py:get_lr"),
            *("deepspeed/runtime/lr_schedules.py:_get_gamma", "deepspeed/runtime/lr_schedules.py:update_lr"),
            *("deepspeed/runtime/lr_schedules.py:get_lr_ratio", "deepspeed/runtime/lr_schedules.py:_format_param"),
        ),
        title="a scheduler of DeepSpeed computes the learning rate",
        what="It fails on strings instead of numbers, in its params or as the optimizer's lr (1e-5 in YAML is a "
        "string), on lists that have not one value per group, and, with WarmupCosineLR before 0.19.3, on "
        "total_num_steps equal to warmup_num_steps (ZeroDivisionError). A scheduler made before deepspeed.initialize "
        "gives groups wrong rates if a group before them had no parameters.",
        remedy="Numbers in the config (1.0e-5 in YAML), total_num_steps above warmup_num_steps.",
        patches=("empty_group_scheduler", "warmup_cosine_past_end"),
        evidence=("deepspeed/runtime/lr_schedules.py",),
    ),
    Fact(
        id="frame_get_torch_optimizer",
        names=("deepspeed/runtime/lr_schedules.py:get_torch_optimizer", "get_torch_optimizer"),
        title="a scheduler of DeepSpeed gets an optimizer that is not torch's",
        what="It takes a torch.optim.Optimizer, or a wrapper whose attribute optimizer is one. A dummy of accelerate, "
        "a list of optimizers or an optimizer of another library is refused.",
        remedy="Make the scheduler from the optimizer that deepspeed.initialize returned, or put it into the config.",
        evidence=("deepspeed/runtime/lr_schedules.py: get_torch_optimizer",),
    ),
)
