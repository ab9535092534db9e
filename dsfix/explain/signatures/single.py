"""More errors of single releases, each told by its message and the function that raises it."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    # engine and optimizers
    Signature(
        id="destroyed_without_bucket",
        title="engine.destroy() under ZeRO-3 with contiguous_gradients false: no attribute …__ipg_bucket_flat_buffer",
        what="Through 0.16.4 the engine deletes a buffer that it has only with contiguous_gradients.",
        remedy="DeepSpeed 0.16.5 or later; or leave contiguous_gradients true.",
        pattern=r"in destroy\n[\s\S]*AttributeError: [^\n]*__ipg_bucket_flat_buffer",
        affects={"deepspeed": "<0.16.5"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/commit/2e7f8e580",),
    ),
    Signature(
        id="bf16_destroyed_without_optimizer",
        title="bf16 without a real optimizer: IndexError in destroy()",
        what="0.14.5 to 0.18.3 take down an optimizer of bf16 that was never set up, as that of an engine for "
        "evaluation.",
        remedy="DeepSpeed 0.18.4 or later; do not call engine.destroy(). At the end of a job it is harmless.",
        pattern=r"bf16_optimizer\.py\", line \d+, in destroy\n[\s\S]*IndexError: list index out of range",
        affects={"deepspeed": ">=0.14.5,<0.18.4"},
        evidence=pull(7763),
    ),
    Signature(
        id="bf16_immediate_zero",
        title="bf16.immediate_grad_update: no attribute '_zero'",
        what="0.14.1 calls a method of tensors that does not exist.",
        remedy='DeepSpeed 0.14.2 or later; or "immediate_grad_update": false.',
        pattern=r"'(?:Tensor|Parameter)' object has no attribute '_zero'",
        affects={"deepspeed": "==0.14.1"},
        evidence=pull(5434),
    ),
    Signature(
        id="bf16_load_state_dict",
        title="BF16_Optimizer.load_state_dict(): missing argument 'checkpoint_folder'",
        what="Through 0.15.0 it cannot be called like an optimizer of torch, as Lightning and others do.",
        remedy="DeepSpeed 0.15.1 or later; or engine.load_checkpoint.",
        pattern=r"load_state_dict\(\) missing 1 required positional argument: 'checkpoint_folder'",
        affects={"deepspeed": "<0.15.1"},
        evidence=pull(6446),
    ),
    Signature(
        id="gradient_of_the_cpu",
        title="without ZeRO: attempting to reduce an unsupported grad type, torch.FloatTensor",
        what="The gradient is on the CPU. Through 0.12.6 training on the CPU fails with it; with a GPU, a parameter "
        "was left on the CPU.",
        remedy="On the CPU: DeepSpeed 0.13.0 or later, or ZeRO-1. With a GPU: move the whole model to it.",
        pattern=r"attempting to reduce an unsupported grad type: torch\.\w+Tensor",
        affects={"deepspeed": "<0.13.0"},
        evidence=pull(3842),
    ),
    Signature(
        id="cpu_device_number",
        title="training on the CPU: Invalid device string: '0', or CUDA is asked for",
        what="0.16.3 to 0.17.6 take the CPU's rank for a device, in AutoTP's check of inputs and for ZeRO-3's leaf "
        "modules.",
        remedy="DeepSpeed 0.18.0 or later; or no leaf modules, and no AutoTP.",
        pattern=r"in (?:compare_tensors_in_structures|broadcast_and_check|release_sub_module)\n[\s\S]*"
        r"(?:Invalid device string: '\d+'|Torch not compiled with CUDA enabled|Found no NVIDIA driver)",
        affects={"deepspeed": ">=0.16.3,<0.18.0"},
        evidence=pull(7600),
    ),
    Signature(
        id="compression_shared_parameters",
        title="compression_training: name 'QUANTIZE_TRAINING' is not defined",
        what='Through 0.19.2 "shared_parameters": {"enabled": true} directly in compression_training runs code that '
        "names a constant that does not exist. It belongs into weight_quantization.",
        remedy="compression_training.weight_quantization.shared_parameters, as documented; or DeepSpeed 0.19.3 to "
        "0.19.6, which ignore it elsewhere.",
        pattern=r"name 'QUANTIZE_TRAINING' is not defined",
        affects={"deepspeed": "<0.19.3"},
        evidence=(*pull(8057), "run: 0.12.6, 0.19.2, 0.19.3"),
    ),
    Signature(
        id="activations_contiguous_without_number",
        title="contiguous activation checkpointing: list index out of range",
        what="contiguous_memory_optimization needs number_checkpoints, the number of checkpointed layers. Through "
        "0.19.2 configure() without it is not refused.",
        remedy="checkpointing.configure(…, num_checkpoints=the number of layers).",
        pattern=r"activation_checkpointing/checkpointing\.py[\s\S]*contiguous_data_buffers\[[\s\S]*"
        r"IndexErro",
        affects={"deepspeed": "<0.19.3"},
        evidence=pull(8041),
    ),
    Signature(
        id="muon_momentum_dtype",
        title="Muon in bf16 after load_checkpoint: expected dtype float32 for `end`, but got bfloat16",
        what="The momentum is saved in fp32. 0.18.3 to 0.19.7 do not cast it to the gradients' dtype when ZeRO-1 or "
        "ZeRO-2 resumes.",
        remedy="DeepSpeed 0.19.8 or later; or load_checkpoint(…, load_optimizer_states=False), which begins with no "
        "momentum.",
        pattern=r"muon[\s\S]*expected dtype \S+ for `end`,? but got dtype",
        affects={"deepspeed": ">=0.18.3,<0.19.8"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7746", *pull(8433)),
    ),
    # schedulers
    Signature(
        id="cosine_warmup_steps",
        title="WarmupCosineLR with warmup_num_steps 0 or 1: math domain error, or division by zero",
        what="0.12.3 takes the logarithm of warmup_num_steps as it is given.",
        remedy="DeepSpeed 0.12.4 or later; or warmup_num_steps 2.",
        pattern=r"self\.inverse_log_warm_up = 1\.0 / math\.log\([\s\S]*(?:math domain error|division by zero)",
        affects={"deepspeed": "==0.12.3"},
        evidence=(*pull(4688), "run: 0.12.3"),
    ),
    Signature(
        id="cosine_warmup_type",
        title="WarmupCosineLR: UnboundLocalError, ratio: an unknown warmup_type",
        what='warmup_type must be "log" or "linear"; through 0.19.3 another one is noticed in the first step only.',
        remedy='"warmup_type": "linear" or "log".',
        pattern=r"in get_lr_ratio\n[\s\S]*local variable 'ratio'",
        affects={"deepspeed": ">=0.12.3,<0.19.4"},
        evidence=(*pull(8151), "run: 0.18.9"),
    ),
    # checkpoints
    Signature(
        id="frozen_not_in_state_dict",
        title="save_checkpoint(exclude_frozen_parameters=True): KeyError of a frozen parameter",
        what="The module's state_dict() leaves frozen parameters out already, and through 0.12.2 DeepSpeed removes "
        "them once more.",
        remedy="DeepSpeed 0.12.3 or later; or save without exclude_frozen_parameters.",
        pattern=r"in module_state_dict\n\s+del sd\[n\][\s\S]*KeyError",
        affects={"deepspeed": "<0.12.3"},
        evidence=pull(4587),
    ),
    Signature(
        id="universal_without_mpu",
        title="loading a universal checkpoint under ZeRO-1/2: no attribute get_tensor_model_parallel_world_size",
        what="Through 0.14.0 the job must have a model-parallel unit (mpu=).",
        remedy="DeepSpeed 0.14.1 or later; or pass an mpu, as Megatron-DeepSpeed does.",
        pattern=r"runtime/zero/stage_1_and_2\.py[\s\S]*"
        r"'NoneType' object has no attribute 'get_tensor_model_parallel_world_size'",
        affects={"deepspeed": "<0.14.1"},
        evidence=pull(5243),
    ),
    Signature(
        id="universal_info_missing",
        title="ds_to_universal: Required universal_checkpoint_info state is missing",
        what="A checkpoint says how its tensors are split; this one was saved without. Plain data parallelism needs "
        "no more than a default; AutoTP by a model's tp_plan does not write it from 0.18.9 to 0.19.3.",
        remedy="Without tensor parallelism: ds_to_universal --inject_missing_state. AutoTP: DeepSpeed 0.19.4 or "
        "later, and a new checkpoint.",
        pattern=r"Required universal_checkpoint_info state is missing in checkpoint"
        r"|[Nn]o `?universal_checkpoint_info|universal_checkpoint_info`?(?:'\])? (?:is |was )?(?:missing|not found)",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(8187),
    ),
    Signature(
        id="decoupled_writer_start_method",
        title="checkpoint.writer with decoupled: no attribute 'get_start_methods'",
        what="0.17.1 to 0.18.3 ask torch.multiprocessing for a function that it does not have.",
        remedy='DeepSpeed 0.18.4 or later; or "decoupled": false.',
        pattern=r"'torch\.multiprocessing' has no attribute 'get_start_methods'",
        affects={"deepspeed": ">=0.17.1,<0.18.4"},
        evidence=(*pull(7742), "run: 0.18.0"),
    ),
    Signature(
        id="moe_with_checkpoint_writer",
        title="MoE + checkpoint.writer: UnboundLocalError, saveable_state_dict",
        what="A misspelt name in 0.18.1 to 0.18.3.",
        remedy="DeepSpeed 0.18.4 or later; or no checkpoint.writer.",
        pattern=r"local variable 'saveable_state_dict'",
        affects={"deepspeed": ">=0.18.1,<0.18.4"},
        evidence=pull(7722),
    ),
    Signature(
        id="nebula_commit",
        title="Nebula: 'str' object has no attribute 'tag' in save_checkpoint",
        what="0.17.1 to 0.18.3 give Nebula the name of the checkpoint where it expects a description.",
        remedy='DeepSpeed 0.18.4 to 0.19.6; or "nebula": {"enabled": false}.',
        pattern=r"nebula_checkpoint_engine\.py[\s\S]*'str' object has no attribute 'tag'",
        affects={"deepspeed": ">=0.17.1,<0.18.4"},
        evidence=pull(7740),
    ),
    Signature(
        id="nvme_nothing_to_wait_for",
        title="ZeRO-3 with the optimizer on NVMe: an assertion about aio_handle.wait() fails",
        what="Where nothing of a group is on NVMe there is nothing to wait for, and through 0.18.2 it is waited for "
        "all the same. Otherwise a file was not read or written: a full or failing disk.",
        remedy="DeepSpeed 0.18.3 or later; check the disk of nvme_path.",
        pattern=r"assert len\(swap_tensors\) == aio_handle\.wait\(\)",
        affects={"deepspeed": ">=0.12.0"},
        role=Role.GENERAL,
        evidence=pull(7712),
    ),
    # torch.compile
    Signature(
        id="compiled_ds_status",
        title="torch.compile + ZeRO-3: a fake tensor has no attribute 'ds_status'",
        what="Through 0.15.1 ZeRO-3 asks each parameter for its state, and the stand-ins with which torch compiles "
        "have none.",
        remedy="DeepSpeed 0.15.2 or later, or train without torch.compile.",
        pattern=r"_dynamo[\s\S]*deepspeed/runtime/zero/parameter_offload\.py[\s\S]*has no attribute 'ds_status'",
        affects={"deepspeed": ">=0.13.2,<0.15.2"},
        evidence=(*pull(6564), *pull(6527)),
    ),
    Signature(
        id="compiled_allgather_params",
        title="torch.compile + ZeRO-3: dynamo fails in _allgather_params",
        what="Through 0.15.4 the function that gathers parameters records gradients, and cannot be compiled.",
        remedy="DeepSpeed 0.16.0 or later, or train without torch.compile.",
        pattern=r"torch\._dynamo\.exc[\s\S]*partition_parameters\.py\"?, line \d+, in _allgather_params\b",
        affects={"deepspeed": ">=0.13.2,<0.16.0"},
        evidence=pull(6769),
    ),
    Signature(
        id="autosp_transformers",
        title="AutoSP requires transformers <= 4.50.3",
        what="0.18.9 to 0.19.1 refuse newer releases of transformers, which need not be refused.",
        remedy="DeepSpeed 0.19.2 or later; or transformers 4.50.3.",
        pattern=r"AutoSP requires transformers <= 4\.50\.3",
        affects={"deepspeed": ">=0.18.9,<0.19.2"},
        evidence=pull(8044),
    ),
    # profilers
    Signature(
        id="profiler_interpolate",
        title="flops profiler + F.interpolate with several scale factors: TypeError in _upsample_flops_compute",
        what="Through 0.17.1 the profiler expects one number.",
        remedy='DeepSpeed 0.17.2 or later; or "flops_profiler": {"enabled": false}.',
        pattern=r"in _upsample_flops_compute\n[\s\S]*TypeError: unsupported operand",
        affects={"deepspeed": "<0.17.2"},
        evidence=(*pull(7353), "run: 0.16.4"),
    ),
    Signature(
        id="profiler_attention_missing",
        title="flops profiler with torch before 2.0: no attribute 'scaled_dot_product_attention'",
        what="0.13.3 to 0.15.1 count a function that torch 2.0 has introduced.",
        remedy="torch 2.0 or later, or DeepSpeed 0.15.2 or later.",
        pattern=r"flops_profiler[\s\S]*has no attribute 'scaled_dot_product_attention'",
        affects={"deepspeed": ">=0.13.3,<0.15.2", "torch": "<2.0"},
        evidence=pull(6517),
    ),
    Signature(
        id="comms_logger_log_name",
        title="comms_logger: KeyError: 'log_name'",
        what="Through 0.19.6 all_to_all (and from 0.16.4 on broadcast_object_list) has no name in the log of "
        "communication.",
        remedy='DeepSpeed 0.19.7 or later; or "comms_logger": {"prof_all": false, "prof_ops": [the others]}.',
        pattern=r"in get_debug_log_name\n[\s\S]*KeyError: 'log_name'",
        affects={"deepspeed": "<0.19.7"},
        evidence=pull(8267),
    ),
    Signature(
        id="printed_count_copied",
        title="'pp_int' object has no attribute 'custom_print_str'",
        what="Through 0.17.5 a number of the config that is shown with separators cannot be printed after it was "
        "made by other means than its class, as by tracing tools and debuggers.",
        remedy="DeepSpeed 0.17.6 or later.",
        pattern=r"'pp_int' object has no attribute 'custom_print_str'",
        affects={"deepspeed": "<0.17.6"},
        evidence=(*pull(7507), "run: 0.16.4"),
    ),
    # launcher
    Signature(
        id="elastic_agent_address",
        title="deepspeed --elastic_training: _set_master_addr_port() takes 3 positional arguments",
        what="Through 0.13.1 DeepSpeed's agent has the signature of torch 1's; torch 2.0 to 2.2 pass one more. Newer "
        "torch releases have other agents, with which no DeepSpeed works.",
        remedy="DeepSpeed 0.13.2 or later with torch 2.0 to 2.2; or torchrun's own elasticity.",
        pattern=r"_set_master_addr_port\(\) takes \d+ positional arguments",
        affects={"deepspeed": "<0.13.2"},
        evidence=pull(4985),
    ),
    Signature(
        id="pdsh_exported_value",
        title="deepspeed launcher over pdsh: bash does not understand an exported variable",
        what="Most likely the launcher: through 0.15.1 it exports the variables of NCCL, Python and .deepspeed_env to "
        "the other hosts without quotes, and a value with a blank, a bracket, ; or & is taken apart by bash there. "
        "Otherwise a script that bash runs has the error.",
        remedy="DeepSpeed 0.15.2 or later; or unset the variable before the launch (env | grep -E 'NCCL|PYTHON|UCX').",
        pattern=r"bash: (?:-c: )?line \d+: (?:syntax error near unexpected token"
        r"|export: `[^\n]*': not a valid identifier)",
        role=Role.POSSIBLE,
        evidence=pull(5878),
    ),
    Signature(
        id="openmpi_interface",
        title="deepspeed --launcher openmpi: the network interface eth0 does not exist",
        what="The launcher asks Open MPI for eth0; through 0.15.2 always, since then unless --launcher_args names "
        "another.",
        remedy="--launcher_args='--mca btl_tcp_if_include NAME' (ip link) with DeepSpeed 0.15.3 or later.",
        pattern=r"invalid value was given for btl_tcp_if_include[\s\S]{0,300}Value:\s+eth0\b",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(6613),
    ),
    # experts and tensor parallelism
    Signature(
        id="all_to_all_timed_out",
        title="an all-to-all timed out: the ranks exchange different sizes, or one did not come",
        what="DeepSpeed's MoE exchanges as many places per expert as its capacity, which each rank computes from its "
        "own number of tokens (drop_tokens=True): ranks with different numbers, as in evaluation, hang. Ulysses: "
        "sequences of different lengths. Otherwise as with any collective: a rank has failed or diverged.",
        remedy="MoE: batches of equal size on all ranks (padding, drop_last), or drop_tokens=False, where the ranks "
        "agree on the capacity. Ulysses: pad to one length.",
        pattern=r"OpType=ALLTOALL\w*",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6809",),
    ),
    Signature(
        id="autotp_fused_weight_unknown",
        title="AutoTP: unrecognized fused qkv weight, taken for one of bloom's kind",
        what="The layer's name is not among those whose order of queries, keys and values is known. 0.13.2 to 0.13.4 "
        "recognise none: the output of CodeGen, GLM, MPT, Baichuan, Qwen and BigCode models is wrong. Elsewhere it is "
        "wrong if the weight is of another kind than BLOOM's.",
        remedy="0.13.2 to 0.13.4: the patch, or DeepSpeed 0.13.5 or later. If the message stays, compare the output "
        "with that of one rank.",
        pattern=r"Unrecognized fusedkqv weight type, default to using bloom type",
        patches=("autotp_fused_weight_unrecognized",),
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(5217),
    ),
)
