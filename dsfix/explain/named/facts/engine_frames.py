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
        what="The config's optimizer is made with its params as arguments (what its class does not take is an error, "
        "as are numbers given as strings), its operator is compiled at once, or the script's is checked: a type that "
        "ZeRO has not tested, a client optimizer with offload, a parameter in two groups, or no parameters at all.",
        remedy='Params as for torch\'s class, numbers as numbers. "torch_adam": true avoids compiling; '
        '"zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer": false for an optimizer of one\'s own.',
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_basic_optimizer",),
    ),
    Fact(
        id="frame_configure_model",
        names=_frames("_configure_distributed_model", "_broadcast_model"),
        title="deepspeed.initialize moves the model to the GPU and broadcasts it",
        what="It casts the model, moves it to this rank's GPU, makes the groups of ranks, and broadcasts each "
        "parameter from rank 0: the first NCCL operation of the job. Errors here are mostly of the set-up: two ranks "
        "on one GPU, a GPU without memory, NCCL's network interface or shared memory, a parameter on the CPU or meta "
        "device, or of a type that the backend does not send, models that differ by rank.",
        remedy="NCCL_DEBUG=INFO; torch.cuda.set_device(local_rank) before; an all_reduce alone tells whether NCCL "
        "works. Load weights before deepspeed.initialize.",
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_distributed_model",),
    ),
    Fact(
        id="frame_sanity_checks",
        names=_frames(
            "_do_sanity_check", "_do_args_sanity_check", "_configure_with_arguments", "_set_distributed_vars"
        ),
        title="deepspeed.initialize checks arguments and devices",
        what="It compares args.local_rank with the environment's LOCAL_RANK, sets the GPU of that number, and refuses "
        "fp16 or bf16 that the device lacks, unknown optimizers, and a scheduler object without its optimizer object. "
        "An invalid device ordinal: more ranks were started than GPUs are visible.",
        remedy="Start with deepspeed, torchrun or accelerate launch, which set LOCAL_RANK, one process for each "
        "visible GPU.",
        evidence=(f"{_FILE}: DeepSpeedEngine._do_sanity_check",),
    ),
    Fact(
        id="frame_configure_zero",
        names=_frames("_configure_zero_optimizer", "_configure_bf16_optimizer", "_configure_fp16_optimizer"),
        title="deepspeed.initialize builds ZeRO's optimizer",
        what="The fp32 copies of the weights, the buckets and, with ZeRO-3, the partitions are allocated and the "
        "hooks set, so that memory (GPU, host or pinned) ends here first. Other causes: all parameters of a group are "
        "frozen, several dtypes in a group, settings that ZeRO refuses with reduce_scatter, or an operator that does "
        "not compile (async_io, cpu_adam).",
        remedy="Memory: a higher stage or offload_optimizer, smaller reduce_bucket_size, pin_memory false. The last "
        "line of the error tells which.",
        evidence=(f"{_FILE}: DeepSpeedEngine._configure_zero_optimizer",),
    ),
    Fact(
        id="frame_configure_scheduler",
        names=_frames("_configure_lr_scheduler", "_scheduler_from_config"),
        title="deepspeed.initialize makes the scheduler of the config",
        what="The name is one of DeepSpeed's (WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest) or of "
        "torch.optim.lr_scheduler, its params are the class's arguments: a missing total_num_steps, a string or "
        'an "auto" that nothing has replaced fails here, as does a scheduler without an optimizer.',
        remedy='Write numbers for all params; "auto" is filled in by transformers and accelerate only.',
        evidence=(f"{_FILE}: DeepSpeedEngine._scheduler_from_config",),
    ),
    Fact(
        id="frame_reduce_gradients",
        names=_frames(
            *("buffered_allreduce_fallback", "_reduce_non_expert_gradients", "_get_gradients_for_reduction"),
            *("allreduce_no_retain", "allreduce_and_copy", "allreduce_bucket", "_reduce_expert_gradients"),
        ),
        title="the engine reduces the gradients itself (without ZeRO, pipelines, bf16)",
        what="At the boundary of accumulation the gradients are copied into flat buckets of up to 500 million "
        "elements, which are averaged among the ranks: it takes that memory again, and waits for all ranks. It fails "
        "where ranks have different parameters, a rank has ended, a gradient is sparse or has an unusual dtype, or an "
        "earlier CUDA error shows up.",
        remedy="ZeRO-1 reduces in smaller buckets. CUDA_LAUNCH_BLOCKING=1 for a CUDA error, the other ranks' logs for "
        "an NCCL one.",
        evidence=(f"{_FILE}: DeepSpeedEngine.buffered_allreduce_fallback",),
    ),
    Fact(
        id="frame_sparse_reduction",
        names=(
            *_frames("sparse_allreduce", "sparse_allreduce_bucket", "sparse_all_gather", "sparse_allreduce_no_retain"),
            "sparse_gradients",
        ),
        title="sparse gradients of embeddings",
        what='With "sparse_gradients": true the gradients of nn.Embedding are sent as the rows that are not zero; it '
        "is for stage 0 only, and for embeddings that are used as such: a tied output layer makes the gradient dense, "
        "which then costs more. Ranks gather buffers of the largest rank's size.",
        remedy='"sparse_gradients": false, unless the vocabulary is very large and not tied.',
        evidence=(f"{_FILE}: DeepSpeedEngine.sparse_allreduce",),
    ),
    Fact(
        id="frame_backward_checks",
        names=(*_frames("_backward_prologue", "_backward_post_hook"), "_backward_prologue_per_tensor"),
        title="the engine's hooks at the model's outputs (0.18.3 and later)",
        what="They run when the backward pass reaches an output of engine(...): also if it was started by "
        "loss.backward() or torch.autograd.grad, and for outputs that only a part of the loss uses. They refuse "
        "tensor.backward() at stage 0, under a pipeline or without engine.scale in fp16.",
        remedy="engine.backward(loss); torch.no_grad() or detach() for outputs that are not trained on.",
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
        what="Each rank loads its own zero_pp_rank_N_…_optim_states.pt to the host. It fails where the file is "
        "missing (saved on another node's disk, with fewer ranks, by save_only_model), cut by a full disk or a killed "
        "job, or where the host's memory does not hold the files of all ranks at once.",
        remedy="All files on every node (shared storage); the checkpoint before it, if a file is cut; "
        "load_optimizer_states=False or a universal checkpoint for other numbers of ranks.",
        evidence=(f"{_FILE}: DeepSpeedEngine._get_all_zero_checkpoint_state_dicts",),
    ),
    Fact(
        id="frame_saving",
        names=_frames(
            "_save_checkpoint", "_create_checkpoint_file", "_save_moe_checkpoint", "_common_checkpoint_state"
        ),
        title="save_checkpoint writes the model's file",
        what="It collects the module's state_dict, the shapes of what the optimizer has, scheduler, counters and "
        "client_state, and pickles them: it fails on objects that cannot be pickled (hooks, process groups, local "
        "functions), on names of parameters that changed after deepspeed.initialize, a full or slow disk, or a "
        "directory that another rank has not made yet.",
        remedy="Plain values in client_state; no change of the model after deepspeed.initialize.",
        evidence=(f"{_FILE}: DeepSpeedEngine._save_checkpoint",),
    ),
    Fact(
        id="frame_parameter_names",
        names=_frames("_get_zero_param_shapes", "_get_zero_frozen_param_attributes", "_get_shared_params"),
        title="saving: DeepSpeed looks up its parameters' names",
        what="The names were noted by deepspeed.initialize. A parameter that was replaced since (an adapter added or "
        "merged, embeddings resized, .to() of another dtype, quantized in place), or that is in the optimizer but not "
        "in the model, has none: failed to find … in named params.",
        remedy="Change the model before deepspeed.initialize; give it only parameters of that model.",
        evidence=(f"{_FILE}: DeepSpeedEngine._get_zero_param_shapes",),
    ),
    Fact(
        id="frame_consolidation",
        names=_frames("_zero3_consolidated_16bit_state_dict", "save_16bit_model", "_consolidated_16bit_state_dict"),
        title="ZeRO-3: the whole model is gathered for saving",
        what="Module by module the parameters are gathered on all GPUs and copied to rank 0's host memory. It hangs "
        "where not all ranks call it, and needs GPU memory for the largest module and host memory for the whole "
        "model; a parameter without ds_id (added later) raises an AttributeError.",
        remedy="Call it on all ranks; stage3_gather_16bit_weights_on_model_save false and zero_to_fp32.py, if memory "
        "is short.",
        evidence=(f"{_FILE}: DeepSpeedEngine._zero3_consolidated_16bit_state_dict",),
    ),
    Fact(
        id="frame_getattr_of_engine",
        names=_frames("__getattr__"),
        title="an attribute of the engine or its model is missing",
        what="The engine passes on what it has not got to its module. A missing attribute means that the module has "
        "another wrapper inside (the method is on engine.module.module or base_model), that the engine's __init__ has "
        "failed before, or that the attribute belongs to another release.",
        remedy="engine.module, or accelerator.unwrap_model(engine), for the model's own methods; with ZeRO-3 call "
        "only forward through the engine.",
        evidence=(f"{_FILE}: DeepSpeedEngine.__getattr__",),
    ),
)
