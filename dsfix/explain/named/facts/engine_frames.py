"""Functions of DeepSpeed's engine in which errors arise: what they do, and what makes them fail."""

from __future__ import annotations

from ..fact import Fact

_FILE = "deepspeed/runtime/engine.py"


def _frames(*functions: str) -> tuple[str, ...]:
    return tuple(f"{_FILE}:{function}" for function in functions)


FACTS = (
    Fact(
        id="frame_configure_optimizer",
        names=_frames("_configure_basic_optimizer", "_do_optimizer_sanity_check", "_check_for_duplicates"),
        title="deepspeed.initialize makes or checks the optimizer",
        what="The config's optimizer is made with its params as arguments: what its class does not take is an error, "
        "as are max_grad_norm, no parameters at all, and an operator that does not compile; numbers given as strings "
        "fail here or in the first step. Refused are also a type that ZeRO has not tested, a parameter that is twice "
        "in the groups, and dtypes that do not go together.",
        remedy='Only params that the class takes, numbers as numbers. "torch_adam": true avoids compiling; '
        '"zero_allow_untested_optimizer": true permits another optimizer.',
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_basic_optimizer, _do_optimizer_sanity_check",),
    ),
    Fact(
        id="frame_configure_model",
        names=_frames("_configure_distributed_model", "_broadcast_model"),
        title="deepspeed.initialize moves the model to the GPU and broadcasts it",
        what="It casts the model with fp16 or bf16, moves it whole to this rank's GPU, with ZeRO-3 too unless it was "
        "made under zero.Init, and broadcasts it from the first rank, often NCCL's first use. Causes: GPU memory, two "
        "ranks on one GPU, NCCL's interface or shared memory; parameters on the meta device or of a type that the "
        "backend does not send, a quantized model that may not be cast, models that differ by rank.",
        remedy="zero.Init (transformers: HfDeepSpeedConfig, kept) for a model that is too large for a GPU. "
        "NCCL_DEBUG=INFO; torch.cuda.set_device(local_rank) before; an all_reduce alone tells whether NCCL works.",
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_distributed_model",),
    ),
    Fact(
        id="frame_sanity_checks",
        names=_frames(
            "_do_sanity_check", "_do_args_sanity_check", "_configure_with_arguments", "_set_distributed_vars"
        ),
        title="deepspeed.initialize checks arguments and devices",
        what="It needs LOCAL_RANK, compares args.local_rank with it, sets the GPU of that number, and refuses unknown "
        "optimizers, a scheduler object without its optimizer object and, since 0.16.0, fp16 or bf16 that the device "
        "lacks. An invalid device ordinal: more ranks were started than GPUs are visible.",
        remedy="Start with deepspeed, torchrun or accelerate launch, which set LOCAL_RANK, one process for each "
        "visible GPU.",
        evidence=(f"{_FILE}: DeepSpeedEngine._do_sanity_check, _do_args_sanity_check",),
    ),
    Fact(
        id="frame_configure_zero",
        names=_frames("_configure_zero_optimizer", "_configure_bf16_optimizer", "_configure_fp16_optimizer"),
        title="deepspeed.initialize builds ZeRO's or the 16-bit optimizer",
        what="The fp32 copies of the weights are allocated, with ZeRO-3 the partitions and a bucket for gradients, "
        "too, so that memory (GPU, host or pinned) ends here first. Other causes: ZeRO-1 or 2 without an optimizer, or "
        "with a group in which all parameters are frozen; ZeRO-3 with trainable parameters of several dtypes; options "
        "that ZeRO refuses with reduce_scatter; async_io, if it does not compile.",
        remedy="Memory: a higher stage or offload_optimizer, with ZeRO-3 a smaller reduce_bucket_size, pin_memory "
        "false. The last line of the error tells which.",
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_zero_optimizer",),
    ),
    Fact(
        id="frame_configure_scheduler",
        names=_frames("_configure_lr_scheduler", "_scheduler_from_config"),
        title="deepspeed.initialize makes the scheduler",
        what="The config's scheduler is one of DeepSpeed's (WarmupLR, WarmupDecayLR, since 0.12.3 WarmupCosineLR, "
        "OneCycle, LRRangeTest) or of torch.optim.lr_scheduler, its params are the class's arguments: a missing "
        'total_num_steps, a number as a string, or an "auto" that nothing has replaced fails here. A function passed '
        "as lr_scheduler is called here with the optimizer.",
        remedy='Write numbers for all params; "auto" is filled in by transformers and accelerate only.',
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_lr_scheduler, _scheduler_from_config",),
    ),
    Fact(
        id="frame_reduce_gradients",
        names=_frames(
            *("buffered_allreduce_fallback", "_reduce_non_expert_gradients", "_get_gradients_for_reduction"),
            *("allreduce_no_retain", "allreduce_and_copy", "allreduce_bucket", "_reduce_expert_gradients"),
        ),
        title="the engine reduces the gradients itself (stage 0, or BF16_Optimizer)",
        what="At the boundary of accumulation the gradients are flattened into buckets of some 500 million elements, "
        "which are averaged among the ranks: it takes that memory again, and waits for all ranks. It fails where a "
        "rank has ended or has other parameters, where a gradient has an unsupported dtype, or where an earlier CUDA "
        "error shows up.",
        remedy="ZeRO-1 with a smaller reduce_bucket_size, if memory ends. CUDA_LAUNCH_BLOCKING=1 for a CUDA error, the "
        "other ranks' logs for an NCCL one.",
        evidence=(f"{_FILE}: DeepSpeedEngine.buffered_allreduce_fallback",),
    ),
    Fact(
        id="frame_sparse_reduction",
        names=(
            *_frames("sparse_allreduce", "sparse_allreduce_bucket", "sparse_all_gather", "sparse_allreduce_no_retain"),
            "sparse_gradients",
        ),
        title="sparse gradients of embeddings",
        what='With "sparse_gradients": true (0.19.8 refuses it) the gradients of nn.Embedding are sent as the rows '
        "that are not zero, at stage 0 only; a tied output layer makes the gradient dense, which then costs more. "
        "Gradients that torch itself makes sparse (nn.Embedding(sparse=True)) are sent like this without it. Ranks "
        "gather buffers of the largest rank's size.",
        remedy='Leave "sparse_gradients" out, unless the vocabulary is very large and not tied.',
        evidence=(f"{_FILE}: DeepSpeedEngine.sparse_allreduce", "deepspeed/runtime/config.py (0.19.8)"),
    ),
    Fact(
        id="frame_backward_checks",
        names=(*_frames("_backward_prologue", "_backward_post_hook"), "_backward_prologue_per_tensor"),
        title="the engine's hooks at the model's outputs (0.18.3 and later)",
        what="They run when a backward pass reaches an output of engine(...), also one that loss.backward() or "
        "torch.autograd.grad has started. Without engine.backward they refuse stage 0, torch before 2.3, and, in fp16 "
        "with a dynamic loss scale, a loss without engine.scale; through 0.18.4 therefore also pipelines in fp16, or "
        "at stage 0 without bf16.",
        remedy="engine.backward(loss), or with ZeRO engine.scale(loss).backward(); torch.no_grad() or detach() for "
        "outputs that are not trained on.",
        affects={"deepspeed": ">=0.18.3"},
        patches=("pipeline_stage0_backward", "several_outputs_of_one_node", "zero_gradients_of_inputs"),
        evidence=(f"{_FILE}: DeepSpeedEngine._backward_prologue, _backward_post_hook",),
    ),
    Fact(
        id="frame_loading_partitions",
        names=_frames(
            *("_get_all_zero_checkpoints", "_get_all_zero_checkpoint_state_dicts", "_get_all_zero_checkpoint_names"),
            "_get_mp_rank_zero_checkpoint_names",
        ),
        title="load_checkpoint reads this rank's optimizer states",
        what="Each rank loads its own zero_pp_rank_N_…_optim_states.pt to the host (before 0.13.0 with "
        "load_module_only, too). It fails where the file is missing (on another node's disk, not copied, or saved "
        "without bf16 and loaded with it, or the reverse: with bf16 the name begins with bf16_), cut by a full disk or "
        "a killed job, or where the host's memory does not hold the files of all its ranks at once.",
        remedy="All files on every node (shared storage), the same precision; the checkpoint before it, if a file is "
        "cut; load_optimizer_states=False takes the weights only.",
        evidence=(f"{_FILE}: DeepSpeedEngine._get_all_zero_checkpoint_state_dicts, _get_rank_zero_ckpt_name",),
    ),
    Fact(
        id="frame_saving",
        names=_frames(
            "_save_checkpoint", "_create_checkpoint_file", "_save_moe_checkpoint", "_common_checkpoint_state"
        ),
        title="save_checkpoint writes the model's file",
        what="It collects the module's state_dict, the shapes of what the optimizer has, scheduler, counters and "
        "client_state, and pickles them. It fails on what cannot be pickled (lambdas, process groups, hooks, mostly in "
        "client_state or in the scheduler), on parameters that were replaced after deepspeed.initialize, on a full "
        "disk, or in a directory that could not be made, of which only the log tells (Failed saving).",
        remedy="Plain values in client_state; no change of the model after deepspeed.initialize.",
        evidence=(f"{_FILE}: DeepSpeedEngine._save_checkpoint, _create_checkpoint_file",),
    ),
    Fact(
        id="frame_parameter_names",
        names=_frames("_get_zero_param_shapes", "_get_zero_frozen_param_attributes"),
        title="saving: DeepSpeed looks up its parameters' names",
        what="The names were noted by deepspeed.initialize. A parameter that was replaced or added since (an adapter, "
        "resized embeddings, quantized layers), or that is in the optimizer but not in the model, has none: failed to "
        "find … in named params.",
        remedy="Change the model before deepspeed.initialize; give it only parameters of that model.",
        evidence=(f"{_FILE}: DeepSpeedEngine._get_zero_param_shapes, _get_zero_frozen_param_attributes",),
    ),
    Fact(
        id="frame_consolidation",
        names=_frames("_zero3_consolidated_16bit_state_dict", "save_16bit_model", "_consolidated_16bit_state_dict"),
        title="ZeRO-3: the whole model is gathered for saving",
        what="Module by module the parameters are gathered on all GPUs and copied to rank 0's host memory. It hangs "
        "where not all ranks call it, and needs GPU memory for the largest layer and, on rank 0, host memory for the "
        "whole model; a parameter without ds_id (added later) raises an AttributeError.",
        remedy="Call it on all ranks; stage3_gather_16bit_weights_on_model_save false and zero_to_fp32.py, if memory "
        "is short.",
        evidence=(f"{_FILE}: DeepSpeedEngine._zero3_consolidated_16bit_state_dict",),
    ),
    Fact(
        id="frame_getattr_of_engine",
        names=_frames("__getattr__"),
        title="an attribute of the engine or its model is missing",
        what="The engine passes on to its module what it has not got itself. Where both lack it, the module mostly has "
        "another wrapper inside (the method is on engine.module.module or base_model), the engine's __init__ has "
        "failed before, or the attribute is of another release of DeepSpeed.",
        remedy="engine.module, or accelerator.unwrap_model(engine), for the model's own methods; with ZeRO-3 gather "
        "what they use outside of a forward pass (GatheredParameters).",
        evidence=(f"{_FILE}: DeepSpeedEngine.__getattr__",),
    ),
)
