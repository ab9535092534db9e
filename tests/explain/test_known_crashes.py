"""Signatures of known bugs of some releases, with texts as DeepSpeed's source raises them, and similar ones."""

import pytest

from tests.explain.test_signatures import traceback

COMPILE = "deepspeed/compile"
LAYERS = "deepspeed/module_inject/layers.py"
REPLACE = ("deepspeed/module_inject/replace_module.py", "conv2d_parallel_shard_weights", "x = module")
TRAINING = ("train.py", "main", "run()")
KEY = "KeyError: 'input'"
RANGE = "IndexError: tuple index out of range"
NARROW = "RuntimeError: narrow(): length must be non-negative."
NO_BACKEND = "RuntimeError: No backend type associated with device type cpu"
META = "NotImplementedError: Cannot copy out of meta tensor; no data!"
LIST = "IndexError: list index out of range"
SQRT = "TypeError: sqrt(): argument 'input' (position 1) must be Tensor, not float"
UNEXPECTED = "__init__() got an unexpected keyword argument"
NO_ATTENTION = "has no attribute 'scaled_dot_product_attention'"
SAMPLING = "deepspeed/runtime/data_pipeline/data_sampling"
NO_VALUE = "where it is not associated with a value"
FASTGEN = ("inference/v2/checkpoint/huggingface_engine.py", "__init__", "AutoConfig.from_pretrained(model)")
AUTOCONFIG = "hf_model_config = AutoConfig.from_pretrained(model_name_or_path)"


def unbound(name):
    return f"UnboundLocalError: cannot access local variable '{name}' {NO_VALUE}"


def lacks(what, name):
    return f"AttributeError: '{what}' object has no attribute '{name}'"


# a message with its frame, and a similar one
PAIRS = {
    "deepcompile_backward_frame": (
        traceback("KeyError: 0", (f"{COMPILE}/backend.py", "make_bw_graph", "frames_needing_bwd.remove(frame_id)")),
        traceback("KeyError: 0", (f"{COMPILE}/backend.py", "make_fw_graph", "frames_needing_bwd.add(frame_id)")),
    ),
    "deepcompile_bw_compiler": (traceback("KeyError: 'bw_compiler'", TRAINING), traceback("KeyError: 'compiler'")),
    "deepcompile_frozen_parameter": (
        traceback(
            "KeyError: 3",
            (f"{COMPILE}/init_z3.py", "init_z3", "grad_buffer = optimizer.__param_id_to_grad_partition[p.ds_id]"),
        ),
        traceback("KeyError: 3", (f"{COMPILE}/init_z3.py", "init_z3", "x = names[p.ds_id]")),
    ),
    "deepcompile_guards": (
        traceback(
            "AssertionError: Guard failed on the same frame it was created. Guard fail reason: 0/0: tensor "
            "'self._modules['a'].weight' size mismatch at index 0. expected 4096, actual 0",
            TRAINING,
        ),
        traceback("AssertionError: Guard failed: size mismatch at index 0. expected 4096, actual 1024", TRAINING),
    ),
    "deepcompile_fallback_kernel": (
        traceback(
            "TypeError: PythonWrapperCodegen.generate_fallback_kernel() takes 2 positional arguments but 3 were given",
            (f"{COMPILE}/inductor.py", "codegen", "V.graph.wrapper_code.generate_fallback_kernel(self, args)"),
        ),
        traceback("TypeError: codegen() takes 2 positional arguments but 3 were given", TRAINING),
    ),
    "deepcompile_partitioner_argument": (
        traceback(
            "TypeError: partition_recompute_ds_params() got an unexpected keyword argument "
            "'static_lifetime_input_indices'",
            TRAINING,
        ),
        traceback("TypeError: partition() got an unexpected keyword argument 'input_indices'", TRAINING),
    ),
    "deepcompile_dummy_inputs": (
        traceback(
            "RuntimeError: setStorage: sizes [2, 4], strides [8, 1] requiring a storage size of 48 are out of bounds "
            "for storage of size 32",
            (f"{COMPILE}/backend.py", "set_example_values_to_symints", "x.as_strided(shape, stride)"),
        ),
        traceback("RuntimeError: setStorage: sizes [2, 4] are out of bounds for storage of size 32", TRAINING),
    ),
    "deepcompile_profile_incomplete": (
        traceback("KeyError: 'device_time'", (f"{COMPILE}/passes/prefetch.py", "schedule_prefetch", "n.meta[x]")),
        traceback("KeyError: 'device_time'", TRAINING),
    ),
    "deepcompile_return_val": (
        traceback(unbound("return_val"), (f"{COMPILE}/profilers/graph_profile.py", "run", "return return_val")),
        traceback(unbound("return_val"), TRAINING),
    ),
    "deepcompile_staticmethod": (
        traceback(
            "TypeError: 'staticmethod' object is not callable",
            (f"{COMPILE}/patch_compiled_func.py", "wrapped_backward_prologue", "return original(ctx)"),
        ),
        traceback("TypeError: 'staticmethod' object is not callable", TRAINING),
    ),
    "deepcompile_unused_wait": (
        traceback(
            "KeyError: wait_allgather_ds_param_1",
            (f"{COMPILE}/util.py", "register_last_uses", "last_user = node_to_last_use[user]"),
        ),
        traceback("KeyError: user", (f"{COMPILE}/util.py", "register_last_uses", "known = node_to_last_use[n]")),
    ),
    "deepcompile_without_optimizer": (
        traceback(lacks("DeepSpeedZeRoOffload", "parameter_offload"), TRAINING),
        traceback(lacks("DeepSpeedZeRoOffload", "parameters"), TRAINING),
    ),
    "deepcompile_offload_states": (
        traceback(
            lacks("NoneType", "to"), ("stage3.py", "offload_states", 'x = self.__ipg_bucket_flat_buffer.to("meta")')
        ),
        traceback(lacks("NoneType", "to"), ("stage3.py", "offload_states", 'x = self.hp_params.to("meta")')),
    ),
    "compiled_names_wrapped": (
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "wrapped.0.weight".\n',
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "0.weight".\n',
    ),
    "compiled_iter_params": (
        "torch._dynamo.exc.InternalTorchDynamoError: 'NoneType' object is not iterable\n\nfrom user code:\n"
        '   File "deepspeed/runtime/zero/partitioned_param_coordinator.py", line 36, in iter_params\n',
        "torch._dynamo.exc.InternalTorchDynamoError: 'NoneType' object is not iterable\n",
    ),
    "compile_backend_refused": (
        traceback(
            "ValueError: Empty module name",
            ("deepspeed/runtime/compiler.py", "get_backend_fn", "module = importlib.import_module(module_name)"),
        ),
        traceback("ValueError: Empty module name", TRAINING),
    ),
    "compile_backend_twice": (
        traceback(
            "TypeError: torch.nn.modules.module.Module.compile() got multiple values for keyword argument 'backend'",
            ("deepspeed/runtime/engine.py", "compile", "self.module.compile(backend=backend, **compile_kwargs)"),
        ),
        traceback("TypeError: compile() got multiple values for keyword argument 'backend'", TRAINING),
    ),
    "pipeline_of_another_model": (
        traceback("AssertionError: model must base PipelineModule", TRAINING),
        traceback("AssertionError: model must be a PipelineModule", TRAINING),
    ),
    "autotp_language_model": (
        traceback(lacks("BertModel", "language_model"), REPLACE),
        traceback(lacks("BertModel", "language_model"), TRAINING),
    ),
    "autotp_text_config": (
        traceback(lacks("GitConfig", "text_config"), REPLACE),
        traceback(lacks("GitConfig", "text_config"), TRAINING),
    ),
    "autotp_bias_gathered": (
        traceback(RANGE, (LAYERS, "gather_params", "param.shape[1],")),
        traceback(RANGE, (LAYERS, "forward", "param.shape[1],")),
    ),
    "autotp_metadata_of_zero3": (
        traceback(RANGE, (LAYERS, "_mark_uc_metadata", "self.weight.shape[1] * self.tp_world_size")),
        traceback(RANGE, (LAYERS, "__init__", "self._mark_uc_metadata()")),
    ),
    "autotp_printing_fused_weight": (
        traceback(
            "ValueError: too many values to unpack (expected 2)",
            (LAYERS, "extra_repr", "out_features, in_features = self.weight.shape"),
        ),
        traceback("ValueError: too many values to unpack (expected 2)", ("net.py", "extra_repr", "a, b = x")),
    ),
    "autotp_printing_without_weight": (
        traceback(unbound("extra_repr_str"), (LAYERS, "extra_repr", "return extra_repr_str")),
        traceback(unbound("text"), (LAYERS, "extra_repr", "return text")),
    ),
    "autotp_one_rank": (
        traceback(lacks("LinearLayer", "tp_world_size"), TRAINING),
        traceback(lacks("LinearLayer", "world_size"), TRAINING),
    ),
    "autotp_meta_tensor_left": (
        traceback(META, ("deepspeed/inference/engine.py", "__init__", "self.module.to(device)")),
        traceback(META, ("deepspeed/runtime/engine.py", "__init__", "self.module.to(device)")),
    ),
    "fastgen_remote_code": (
        traceback(
            "ValueError: Loading a/b requires you to execute the configuration file in that repo on your local "
            "machine. Make sure you have read the code there, then set the option `trust_remote_code=True`",
            FASTGEN,
        ),
        traceback("ValueError: set the option `trust_remote_code=True`", TRAINING),
    ),
    "fastgen_generation_config": (
        traceback("OSError: a/b does not appear to have a file named generation_config.json.", FASTGEN),
        traceback("OSError: a/b does not appear to have a file named generation_config.json.", TRAINING),
    ),
    "fastgen_q_ratio": (
        traceback("ValueError: Unsupported q_ratio: 7, supported_q_ratios are [1, 2, 4, 5]", TRAINING),
        traceback("ValueError: Unsupported head size: 72, supported_head_sizes are [64]", TRAINING),
    ),
    "fastgen_unembed_dtype": (
        traceback(lacks("UnembedParameter", "dtype"), TRAINING),
        traceback(lacks("EmbeddingParameter", "type"), TRAINING),
    ),
    "fastgen_opt_names": (
        'ValueError: Could not find a mapping for dependency "decoder.embed_tokens.weight". Check that\n',
        'ValueError: Could not find a mapping for dependency "model.layers.0.weight". Check that\n',
    ),
    "kernels_of_llama_heads": (
        traceback(
            lacks("LlamaAttention", "num_heads"),
            (
                "deepspeed/module_inject/containers/llama.py",
                "get_hidden_heads",
                "self.client_module.self_attn.num_heads",
            ),
        ),
        traceback(lacks("LlamaAttention", "num_heads"), TRAINING),
    ),
    "kernels_of_fp32_model": (
        traceback(lacks("DeepSpeedGPTInference", "dtype"), TRAINING),
        traceback(lacks("DeepSpeedEngine", "dtype"), TRAINING),
    ),
    "kernels_of_bloom": (
        "Transformers version 4.48.0 exceeds version 4.43.4! After transformers version 4.43.4, BLOOM inference with "
        "DeepSpeed is no longer supported.\n",
        "Transformers version 4.48.0 exceeds version 4.43.4!\n",
    ),
    "kernels_of_opt_positions": (
        traceback("TypeError: OPTEmbedding.forward() got an unexpected keyword argument 'position_ids'", TRAINING),
        traceback("TypeError: OPTModel.forward() got an unexpected keyword argument 'position_ids'", TRAINING),
    ),
    "inference_moe_flag": (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedInferenceConfig\nmoe.moe\n"
        "  Extra inputs are not permitted [type=extra_forbidden, input_value=True, input_type=bool]\n",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedInferenceConfig\nmoe\n"
        "  Extra inputs are not permitted [type=extra_forbidden, input_value=True, input_type=bool]\n",
    ),
    "diffusers_classes_moved": (
        traceback("AttributeError: module 'diffusers.models' has no attribute 'vae'", TRAINING),
        traceback("AttributeError: module 'diffusers.models' has no attribute 'flux'", TRAINING),
    ),
    "diffusers_new_arguments": (
        traceback("TypeError: DSUNet._forward() got an unexpected keyword argument 'added_cond_kwargs'", TRAINING),
        traceback("TypeError: UNet.forward() got an unexpected keyword argument 'added_cond_kwargs'", TRAINING),
    ),
    "diffusers_linear_arguments": (
        traceback(
            "TypeError: linear_layer_fp16(): incompatible function arguments. The following argument types are",
            ("deepspeed/ops/transformer/inference/diffusers_attention.py", "selfAttention_fp", "linear_func(x)"),
        ),
        traceback("TypeError: linear_layer_fp16(): incompatible function arguments. The following", TRAINING),
    ),
    "diffusers_triton_dot": (
        "TypeError: dot() got an unexpected keyword argument 'trans_b'\n",
        "TypeError: dot() got an unexpected keyword argument 'trans_a'\n",
    ),
    "hybrid_engine_prints_speed": (
        traceback(
            "TypeError: unsupported operand type(s) for *: 'float' and 'NoneType'",
            ("deepspeed/runtime/hybrid_engine.py", "eval", "f'{(1 / latency * self._total_batch_size):.2f}'"),
        ),
        traceback("TypeError: unsupported operand type(s) for *: 'float' and 'NoneType'", TRAINING),
    ),
    "hybrid_engine_quantized_heads": (
        traceback(RANGE, ("module_inject/containers/llama.py", "get_hidden_heads", "weight.shape)[1],")),
        traceback(RANGE, ("module_inject/containers/llama.py", "attention", "weight.shape)[1],")),
    ),
    "experts_averaged_over_all_ranks": (
        "[WARNING] ZeRO Stage 1 has not been thoroughly tested with MoE. This configuration is still experimental.\n",
        "Contiguous Gradients in ZeRO Stage 2 must be set to True for MoE. Other code paths are not tested with MoE\n",
    ),
    "moe_capacity_above_tokens": (
        traceback(
            "RuntimeError: selected index k out of range",
            ("deepspeed/moe/sharded_moe.py", "top1gating", "top_idx = _top_idx(mask1_rand, capacity)"),
        ),
        traceback("RuntimeError: selected index k out of range", TRAINING),
    ),
    "moe_topk_without_dropping": (
        traceback(
            unbound("locations"),
            ("deepspeed/moe/sharded_moe.py", "topkgating", "_one_hot_to_float((locations * mask), capacity)"),
        ),
        traceback(unbound("locations"), TRAINING),
    ),
    "moe_offload_norm_on_cpu": (
        traceback(NO_BACKEND, ("zero/stage_1_and_2.py", "_average_expert_grad_norms", "dist.all_reduce(norm)")),
        traceback(NO_BACKEND, ("zero/stage_1_and_2.py", "scaled_global_norm", "dist.all_reduce(norm)")),
    ),
    "bf16_moe_weights_restored": (
        traceback(
            "IndexError: list index out of range",
            ("deepspeed/runtime/bf16_optimizer.py", "_restore_from_bit16_weights", "x.copy_(y[partition_id].data)"),
        ),
        traceback("IndexError: list index out of range", ("zero/stage3.py", "_restore_from_bit16_weights", "x[i]")),
    ),
    "nvme_group_without_id": (
        traceback(
            lacks("Tensor", "ds_id"),
            ("deepspeed/runtime/swap_tensor/optimizer_utils.py", "parameter_id", "return param.ds_id"),
        ),
        traceback(lacks("Tensor", "ds_id"), TRAINING),
    ),
    "offload_states_with_offload_param": (
        "AssertionError: Moving states across devices is not supported for offloaded parameters.\n",
        "AssertionError: Moving states across devices is not supported without an optimizer.\n",
    ),
    "super_offload_arguments": (
        "TypeError: SuperOffloadOptimizer_Stage3.__init__() got multiple values for argument 'timers'\n",
        "TypeError: Optimizer.__init__() got multiple values for argument 'timers'\n",
    ),
    "ulysses_heads_and_ranks": (
        "AssertionError: Number of heads (2) must be larger than sequence parallel size (4)\n",
        "AssertionError: Number of heads must be even\n",
    ),
    "device_mesh_with_index": (
        traceback(
            "RuntimeError: Device type with index is not supported but got cuda:0. If you maintained a 'torch.device'",
            ("deepspeed/comm/torch.py", "init_device_mesh", "torch.distributed.device_mesh.init_device_mesh(name)"),
        ),
        traceback("RuntimeError: Device type with index is not supported but got cuda:0.", TRAINING),
    ),
    "ulysses_of_peft_model": (
        traceback(
            "OSError: Incorrect path_or_model_id: 'PeftModelForCausalLM(",
            ("deepspeed/runtime/sequence_parallel/ulysses_sp.py", "register_with_transformers", AUTOCONFIG),
        ),
        traceback(
            "OSError: Incorrect path_or_model_id: 'a/b'",
            ("deepspeed/runtime/sequence_parallel/ulysses_sp.py", "register_with_transformers", AUTOCONFIG),
        ),
    ),
    "ulysses_of_multimodal_model": (
        traceback(
            lacks("Gemma4Config", "num_attention_heads"),
            ("deepspeed/runtime/sequence_parallel/ulysses_sp.py", "register_with_transformers", "x.num_heads"),
        ),
        traceback(lacks("Gemma4Config", "num_attention_heads"), TRAINING),
    ),
    "fpdt_and_flash_attention": (
        traceback(
            "ValueError: not enough values to unpack (expected 8, got 4)",
            ("deepspeed/sequence/fpdt_layer.py", "forward", "a, _, _, _, _, b, _, _ = _flash_attn_forward(q)"),
        ),
        traceback("ValueError: not enough values to unpack (expected 8, got 4)", TRAINING),
    ),
    "profiler_attention_by_name": (
        traceback("TypeError: _attn_flops_compute() missing 3 required positional arguments: 'q', 'k', and 'v'"),
        traceback("TypeError: attention() missing 3 required positional arguments: 'q', 'k', and 'v'"),
    ),
    "profiler_data_parallel_size": (
        traceback(
            "TypeError: unsupported format string passed to NoneType.__format__",
            ("profiling/flops_profiler/profiler.py", "print_model_profile", "print(line_fmt.format('a', None))"),
        ),
        traceback("TypeError: unsupported format string passed to NoneType.__format__", TRAINING),
    ),
    "log_summary_on_cpu": (
        traceback(NO_BACKEND, ("deepspeed/utils/comms_logging.py", "log_all", "dist.all_reduce(min_lats)")),
        traceback(NO_BACKEND, TRAINING),
    ),
    "dynamo_on_python_312": (
        traceback(
            "RuntimeError: Dynamo is not supported on Python 3.12+",
            ("deepspeed/utils/torch.py", "jit_script_compat", "return torch.compile(fn)"),
        ),
        traceback("RuntimeError: Dynamo is not supported on Python 3.12+", TRAINING),
    ),
    "universal_padding_too_long": (
        traceback(NARROW, ("deepspeed/checkpoint/zero_checkpoint.py", "_strip_tensor_paddings", "torch.narrow(x)")),
        traceback(NARROW, TRAINING),
    ),
    "fp16_auto_cast_of_indices": (
        traceback(
            "RuntimeError: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, "
            "Int; but got torch.cuda.HalfTensor instead (while checking arguments for embedding)",
            ("deepspeed/runtime/engine.py", "forward", "loss = self.module(*inputs, **kwargs)"),
        ),
        traceback(
            "RuntimeError: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, "
            "Int; but got torch.cuda.FloatTensor instead (while checking arguments for embedding)",
            ("deepspeed/runtime/engine.py", "forward", "loss = self.module(*inputs, **kwargs)"),
        ),
    ),
    "bf16_without_gradients": (
        traceback(
            "RuntimeError: stack expects a non-empty TensorList",
            ("deepspeed/runtime/bf16_optimizer.py", "step", "norm = get_global_norm_of_tensors(grads)"),
            ("deepspeed/runtime/utils.py", "get_global_norm_of_tensors", "torch.stack(all_norms).pow(norm_type)"),
        ),
        traceback(
            "RuntimeError: stack expects a non-empty TensorList",
            ("deepspeed/runtime/utils.py", "get_global_norm_of_tensors", "torch.stack(all_norms).pow(norm_type)"),
        ),
    ),
    "autotp_decoder_layer_order": (
        traceback(
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (12x32 and 64x32)",
            ("transformers/models/persimmon/modeling_persimmon.py", "forward", "attn_output = self.dense(attn_output)"),
            ("deepspeed/module_inject/layers.py", "forward", "output = torch.matmul(input, self.weight)"),
        ),
        traceback(
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (12x32 and 64x32)",
            ("transformers/models/persimmon/modeling_persimmon.py", "forward", "attn_output = self.dense(attn_output)"),
            ("torch/nn/modules/linear.py", "forward", "return F.linear(input, self.weight, self.bias)"),
        ),
    ),
    "autotp_falcon_heads": (
        traceback(
            "RuntimeError: shape '[1, 8, 2, 18, 64]' is invalid for input of size 9216",
            ("deepspeed/inference/engine.py", "forward", "outputs = self.module(*inputs, **kwargs)"),
            ("transformers/models/falcon/modeling_falcon.py", "_split_heads", "qkv = fused_qkv.view(x)"),
        ),
        traceback(
            "RuntimeError: shape '[1, 8, 2, 18, 64]' is invalid for input of size 9216",
            ("transformers/models/falcon/modeling_falcon.py", "_split_heads", "qkv = fused_qkv.view(x)"),
        ),
    ),
    "autotp_uneven_split": (
        traceback(
            "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 50257 (input tensor's size at "
            "dimension 0), but got split_sizes=[25124, 25124]",
            ("deepspeed/module_inject/auto_tp.py", "_replace", "data = child.weight.data.split(sizes, dim=0)"),
        ),
        traceback("RuntimeError: split_with_sizes expects split_sizes to sum exactly to 3", TRAINING),
    ),
    "inference_checkpoint_in_bf16": (
        traceback(
            "RuntimeError: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != c10::Half",
            (LAYERS, "forward", "output = torch.matmul(input, self.weight.transpose(-1, -2))"),
        ),
        traceback(
            "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::Half",
            (LAYERS, "forward", "output = torch.matmul(input, self.weight.transpose(-1, -2))"),
        ),
    ),
    "half_frozen_group": (
        traceback(
            "ValueError: torch.cat(): expected a non-empty list of Tensors",
            ("deepspeed/runtime/fp16/fused_optimizer.py", "__init__", "_flatten_dense_tensors([p for p in x])"),
        ),
        traceback("ValueError: torch.cat(): expected a non-empty list of Tensors", TRAINING),
    ),
    "fp16_static_scale_timers": (
        traceback(
            "TypeError: 'NoneType' object is not callable",
            ("deepspeed/runtime/fp16/fused_optimizer.py", "step", "self.timers(OVERFLOW_CHECK_TIMER).start()"),
        ),
        traceback(
            "TypeError: 'NoneType' object is not callable",
            ("deepspeed/runtime/fp16/fused_optimizer.py", "step", "closure()"),
        ),
    ),
    "launcher_quotes": (
        traceback("ValueError: No closing quotation", ("deepspeed/launcher/runner.py", "main", "shlex.split(x)")),
        traceback("ValueError: No closing quotation", TRAINING),
    ),
    "pipeline_tied_frozen": (
        traceback(
            "TypeError: Invalid function argument. Expected parameter `tensor` of type torch.Tensor but got <class "
            "'NoneType'> instead.",
            ("deepspeed/runtime/pipe/engine.py", "_exec_reduce_tied_grads", "dist.all_reduce(grad, group=group)"),
        ),
        traceback("TypeError: Expected parameter `tensor` but got <class 'NoneType'> instead.", TRAINING),
    ),
    "zero3_gather_of_two_dtypes": (
        traceback("AssertionError: all params must have the same dtype", TRAINING),
        traceback("AssertionError: all params must have the same device", TRAINING),
    ),
    "zero3_gathered_twice": (
        traceback("AssertionError: expected param {'id': 1, 'status': 'AVAILABLE', 'numel': 8} to be inflight"),
        traceback("AssertionError: expected param {'id': 1, 'status': 'AVAILABLE', 'numel': 8} to be available"),
    ),
    "zero3_gather_unique_dtype": (
        traceback(
            "RuntimeError: expected there to be only one unique element in <generator object>",
            ("zero/partition_parameters.py", "all_gather_coalesced", "dtype=get_only_unique_item(x)"),
        ),
        traceback("RuntimeError: expected there to be only one unique element in <generator object>", TRAINING),
    ),
    "zero3_functorch": (
        traceback(
            "RuntimeError: In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, jacrev, "
            "...), it must override the setup_context staticmethod.",
            ("deepspeed/runtime/zero/linear.py", "zero3_linear_wrap", "LinearFunctionForZeroStage3.apply(x)"),
        ),
        traceback("RuntimeError: it must override the setup_context staticmethod.", TRAINING),
    ),
    "hpz_small_parameter": (
        traceback(NARROW, ("zero/partition_parameters.py", "_partition_param_sec", "x.narrow(0, 0, sec_numel)")),
        traceback(NARROW, ("zero/partition_parameters.py", "_partition_param", "x.narrow(0, 0, numel)")),
    ),
    "zero1_prescaled_gradients": (
        "AssertionError: pre-scale gradients is not yet supported with {self.zero_stage_string} with reduce scatter\n",
        "AssertionError: pre-scale gradients is not supported\n",
    ),
    "zero12_empty_norm": (
        traceback(
            "RuntimeError: stack expects each tensor to be equal size, but got [] at entry 0 and [1] at entry 1",
            ("zero/stage_1_and_2.py", "scaled_global_norm", "torch.norm(torch.stack(norm_groups), p=norm_type)"),
        ),
        traceback("RuntimeError: stack expects each tensor to be equal size, but got [] at entry 0", TRAINING),
    ),
    "broadcast_without_autograd": (
        "UserWarning: c10d::broadcast_: an autograd kernel was not registered to the Autograd key(s) but we\n",
        "UserWarning: c10d::allreduce_: an autograd kernel was not registered to the Autograd key(s)\n",
    ),
    "mics_prints_its_handle": (
        "HANDLE <torch.distributed.distributed_c10d._CoalescingManager object at 0x7f0>\n",
        "a HANDLE of torch.distributed\n",
    ),
    "amp_functions_renamed": (
        "FutureWarning: `torch.cuda.amp.custom_fwd(args...)` is deprecated. Please use `torch.amp.custom_fwd`\n",
        "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.\n",
    ),
    "pydantic_field_arguments": (
        "PydanticDeprecatedSince20: Using extra keyword arguments on `Field` is deprecated and will be removed. Use "
        "`json_schema_extra` instead. (Extra keys: 'new_param'). Deprecated in Pydantic V2.0\n",
        "PydanticDeprecatedSince20: Using extra keyword arguments on `Field` is deprecated. (Extra keys: 'env')\n",
    ),
    "pydantic_model_fields": (
        "PydanticDeprecatedSince211: Accessing the 'model_fields' attribute on the instance is deprecated. Instead, "
        "you should access this attribute from the model class.\n",
        "PydanticDeprecatedSince211: Accessing the 'other' attribute on the instance is deprecated.\n",
    ),
    "distutils_deprecated": (
        "/opt/deepspeed/utils/numa.py:12: DeprecationWarning: The distutils package is deprecated and slated for "
        "removal in Python 3.12.\n",
        "/opt/other/numa_nodes.py:12: DeprecationWarning: The distutils package is deprecated\n",
    ),
    "state_dict_by_position": (
        "UserWarning: Positional args are being deprecated, use kwargs instead. Refer to https://pytorch.org/docs\n",
        "UserWarning: keyword arguments are being deprecated\n",
    ),
    "device_of_the_group_unknown": (
        "[rank0]:[W1016 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0] using GPU 0 to perform barrier as "
        "devices used by this process are currently unknown.\n",
        "[rank0]: the device used by this process is cuda:0\n",
    ),
    "pipeline_partitioning_logged": (
        "--- Logging error ---\n"
        + traceback(
            "TypeError: not all arguments converted during string formatting",
            ("deepspeed/runtime/pipe/engine.py", "__init__", "logger.info(f'is_pipe_partitioned= {x}',"),
        ),
        "[INFO] is_pipe_partitioned= False is_grad_partitioned= False\n",
    ),
    "triton_cache_reported_on_nfs": (
        "Warning: The default cache directory for DeepSpeed Triton autotune, /root/.triton/autotune, appears to be on "
        "an NFS system.\n",
        "The cache directory /root/.triton is on an NFS system.\n",
    ),
    "engine_deleted_after_error": (
        "Exception ignored in: <function DeepSpeedEngine.__del__ at 0x7f0c>\n",
        "Exception ignored in: <function DataLoader.__del__ at 0x7f0c>\n",
    ),
    "mics_offload_ratio": (
        traceback(f"TypeError: MiCS_Optimizer.{UNEXPECTED} 'offload_ratio'", TRAINING),
        traceback(f"TypeError: MiCS_Optimizer.{UNEXPECTED} 'ratio'", TRAINING),
    ),
    "mics_without_its_init": (
        traceback(
            "AssertionError: Sharded parameters don't have the MiCS_CommGroups attached. Might due to the use of "
            "deepspeed.zero.Init context for initializing the weights.",
            TRAINING,
        ),
        traceback("AssertionError: Sharded parameters don't have a group", TRAINING),
    ),
    "zenflow_offloaded_parameters": (
        traceback(
            "RuntimeError: narrow() cannot be applied to a 0-dim tensor.",
            ("deepspeed/ops/adam/zenflow_torch_adam.py", "_step_without_offload", "param.ds_tensor.data.narrow(0, 1)"),
        ),
        traceback("RuntimeError: narrow() cannot be applied to a 0-dim tensor.", TRAINING),
    ),
    "zenflow_empty_selection": (
        traceback(
            "IndexError: tensors used as indices must be long, int, byte or bool tensors",
            ("deepspeed/runtime/zenflow/engine_stage3.py", "_process_selected_fp32_groups_grad", "param.selected_grad"),
        ),
        traceback("IndexError: tensors used as indices must be long, int, byte or bool tensors", TRAINING),
    ),
    "cupy_without_dlpack": (
        traceback(
            "AttributeError: 'cupy.ndarray' object has no attribute 'toDlpack'",
            ("deepspeed/runtime/compression/cupy.py", "cupy2torch", "return from_dlpack(x)"),
        ),
        traceback("AttributeError: 'cupy.ndarray' object has no attribute 'toDlpack'", TRAINING),
    ),
    "data_analyzer_specific_threads": (
        traceback(
            "IndexError: list index out of range", (f"{SAMPLING}/data_analyzer.py", "run_map", "p[thread].start()")
        ),
        traceback("IndexError: list index out of range", (f"{SAMPLING}/data_analyzer.py", "run_reduce", "names[0]")),
    ),
    "data_analyzer_empty_file": (
        traceback(
            "ValueError: cannot mmap an empty file",
            (f"{SAMPLING}/data_analyzer.py", "merge_gather_map_stats", "MMapIndexedDataset(w_sample_to_metric_fname)"),
            (f"{SAMPLING}/indexed_dataset.py", "_do_init", "np.memmap(data_file_path(self._path), mode='r')"),
        ),
        traceback("ValueError: cannot mmap an empty file", TRAINING),
    ),
    "data_analyzer_dtype": (
        traceback(
            "TypeError: Cannot interpret 'torch.int64' as a data type",
            (f"{SAMPLING}/indexed_dataset.py", "add_item", "np.array(tensor.numpy(), dtype=self._dtype)"),
        ),
        traceback("TypeError: Cannot interpret 'torch.int64' as a data type", TRAINING),
    ),
    "data_analyzer_index": (
        traceback(
            "KeyError: 'index'",
            (f"{SAMPLING}/data_analyzer.py", "update_metric_results", "data['index'][row][0].item())"),
        ),
        traceback("KeyError: 'index'", (f"{SAMPLING}/data_analyzer.py", "update_metric_results", "names['index']")),
    ),
    "batch_size_scaling_sqrt": (
        traceback(SQRT, (f"{SAMPLING}/variable_batch_size_and_lr.py", "scale_lr", "torch.sqrt(a / b)")),
        traceback(SQRT, TRAINING),
    ),
    "destroyed_without_bucket": (
        traceback(
            lacks("DeepSpeedZeroOptimizer_Stage3", "_DeepSpeedZeroOptimizer_Stage3__ipg_bucket_flat_buffer"),
            ("deepspeed/runtime/zero/stage3.py", "destroy", "del self.__ipg_bucket_flat_buffer"),
        ),
        traceback(lacks("DeepSpeedZeroOptimizer_Stage3", "__bucket"), ("zero/stage3.py", "destroy", "del x")),
    ),
    "bf16_destroyed_without_optimizer": (
        traceback(LIST, ("deepspeed/runtime/bf16_optimizer.py", "destroy", "for p in self.bf16_groups[i]:")),
        traceback(LIST, ("deepspeed/runtime/bf16_optimizer.py", "step", "for p in self.bf16_groups[i]:")),
    ),
    "bf16_immediate_zero": (
        traceback(lacks("Tensor", "_zero"), TRAINING),
        traceback(lacks("Tensor", "zero"), TRAINING),
    ),
    "bf16_load_state_dict": (
        traceback(
            "TypeError: BF16_Optimizer.load_state_dict() missing 1 required positional argument: 'checkpoint_folder'",
            TRAINING,
        ),
        traceback("TypeError: load_state_dict() missing 1 required positional argument: 'state_dict'", TRAINING),
    ),
    "gradient_of_the_cpu": (
        traceback("AssertionError: attempting to reduce an unsupported grad type: torch.FloatTensor", TRAINING),
        traceback("AssertionError: attempting to reduce an unsupported grad type: torch.float64", TRAINING),
    ),
    "cpu_device_number": (
        traceback(
            "RuntimeError: Invalid device string: '0'",
            ("zero/partitioned_param_coordinator.py", "release_sub_module", "torch.empty(1, device=x)"),
        ),
        traceback("RuntimeError: Invalid device string: '0'", TRAINING),
    ),
    "compression_shared_parameters": (
        traceback("NameError: name 'QUANTIZE_TRAINING' is not defined", TRAINING),
        traceback("NameError: name 'TRAINING' is not defined", TRAINING),
    ),
    "activations_contiguous_without_number": (
        traceback(
            LIST,
            (
                "deepspeed/runtime/activation_checkpointing/checkpointing.py",
                "partition_activations",
                "contiguous_partition = contiguous_data_buffers[i][data_offsets[i]].data.copy_(partition.data)",
            ),
        ),
        traceback(LIST, ("deepspeed/runtime/activation_checkpointing/checkpointing.py", "f", "x = buffers[i]")),
    ),
    "muon_momentum_dtype": (
        traceback(
            "RuntimeError: expected dtype torch.float32 for `end`, but got dtype torch.bfloat16",
            ("deepspeed/runtime/zero/muon/original_muon.py", "muon_update", "momentum.lerp_(grad, 1 - beta)"),
        ),
        traceback("RuntimeError: expected dtype torch.float32 for `end`, but got dtype torch.bfloat16", TRAINING),
    ),
    "cosine_warmup_steps": (
        traceback(
            "ValueError: math domain error",
            ("lr_schedules.py", "__init__", "self.inverse_log_warm_up = 1.0 / math.log(warmup_num_steps)"),
        ),
        traceback("ValueError: math domain error", TRAINING),
    ),
    "cosine_warmup_type": (
        traceback(unbound("ratio"), ("deepspeed/runtime/lr_schedules.py", "get_lr_ratio", "ratio * ratio_delta")),
        traceback(unbound("ratio"), TRAINING),
    ),
    "frozen_not_in_state_dict": (
        traceback("KeyError: 'a.weight'", ("deepspeed/runtime/engine.py", "module_state_dict", "del sd[n]")),
        traceback("KeyError: 'a.weight'", ("deepspeed/runtime/engine.py", "module_state_dict", "x = sd[n]")),
    ),
    "universal_without_mpu": (
        traceback(
            lacks("NoneType", "get_tensor_model_parallel_world_size"),
            ("deepspeed/runtime/zero/stage_1_and_2.py", "_load_hp_checkpoint_state", "tp_world_size = self.mpu.x()"),
        ),
        traceback(lacks("NoneType", "get_tensor_model_parallel_world_size"), TRAINING),
    ),
    "universal_info_missing": (
        "AssertionError: Required universal_checkpoint_info state is missing in checkpoint. Verify that client creates "
        "this state.\n",
        "AssertionError: Required optimizer state is missing in checkpoint.\n",
    ),
    "decoupled_writer_start_method": (
        traceback("AttributeError: module 'torch.multiprocessing' has no attribute 'get_start_methods'", TRAINING),
        traceback("AttributeError: module 'multiprocessing' has no attribute 'get_start_methods'", TRAINING),
    ),
    "moe_with_checkpoint_writer": (
        traceback(unbound("saveable_state_dict"), TRAINING),
        traceback(unbound("state_dict"), TRAINING),
    ),
    "nebula_commit": (
        traceback(lacks("str", "tag"), ("checkpoint_engine/nebula_checkpoint_engine.py", "commit", "tag = info.tag")),
        traceback(lacks("str", "tag"), TRAINING),
    ),
    "nvme_nothing_to_wait_for": (
        traceback(
            "AssertionError",
            (
                "deepspeed/runtime/swap_tensor/optimizer_utils.py",
                "_swap_in_fp16",
                "assert len(swap_tensors) == aio_handle.wait()",
            ),
        ),
        traceback("AssertionError", ("swap_tensor/optimizer_utils.py", "f", "assert 1 == aio_handle.wait()")),
    ),
    "compiled_ds_status": (
        traceback(
            f"torch._dynamo.exc.InternalTorchDynamoError: {lacks('FakeTensor', 'ds_status')}",
            ("torch/_dynamo/variables/builder.py", "wrap", "value[key]"),
            ("deepspeed/runtime/zero/parameter_offload.py", "__getitem__", "if param.ds_status == x:"),
        ),
        traceback(
            lacks("Parameter", "ds_status"),
            ("deepspeed/runtime/zero/parameter_offload.py", "__getitem__", "if param.ds_status == x:"),
        ),
    ),
    "compiled_allgather_params": (
        "torch._dynamo.exc.TorchRuntimeError: Failed running call_method\n\nfrom user code:\n"
        '   File "/opt/deepspeed/runtime/zero/partition_parameters.py", line 1930, in _allgather_params\n',
        "torch._dynamo.exc.TorchRuntimeError: Failed running call_method\n\nfrom user code:\n"
        '   File "/opt/deepspeed/runtime/zero/partition_parameters.py", line 1930, in _partition\n',
    ),
    "autosp_transformers": (
        traceback("RuntimeError: AutoSP requires transformers <= 4.50.3, found 4.57.1.", TRAINING),
        traceback("RuntimeError: AutoSP requires PyTorch >= 2.9, found 2.8.0.", TRAINING),
    ),
    "profiler_interpolate": (
        traceback(
            "TypeError: unsupported operand type(s) for ** or pow(): 'tuple' and 'int'",
            ("flops_profiler/profiler.py", "_upsample_flops_compute", "flops *= scale_factor**len(input)"),
        ),
        traceback("TypeError: unsupported operand type(s) for ** or pow(): 'tuple' and 'int'", TRAINING),
    ),
    "profiler_attention_missing": (
        traceback(
            f"AttributeError: module 'torch.nn.functional' {NO_ATTENTION}",
            ("deepspeed/profiling/flops_profiler/profiler.py", "_patch_functionals", "wrapFunc(F.x)"),
        ),
        traceback(f"AttributeError: module 'torch.nn.functional' {NO_ATTENTION}", TRAINING),
    ),
    "comms_logger_log_name": (
        traceback("KeyError: 'log_name'", ("deepspeed/comm/utils.py", "get_debug_log_name", "func_args['log_name']")),
        traceback("KeyError: 'log_name'", TRAINING),
    ),
    "printed_count_copied": (
        traceback(lacks("pp_int", "custom_print_str"), TRAINING),
        traceback(lacks("pp_int", "real"), TRAINING),
    ),
    "elastic_agent_address": (
        traceback(
            "TypeError: DSElasticAgent._set_master_addr_port() takes 3 positional arguments but 4 were given", TRAINING
        ),
        traceback("TypeError: f() takes 3 positional arguments but 4 were given", TRAINING),
    ),
    "pdsh_exported_value": (
        "worker-1: bash: -c: line 0: syntax error near unexpected token `('\n",
        "worker-1: bash: line 1: nvidia-smi: command not found\n",
    ),
    "openmpi_interface": (
        "WARNING: An invalid value was given for btl_tcp_if_include.  This\nvalue will be ignored.\n\n"
        "  Local host: a\n  Value:      eth0\n  Message:    Unknown interface name\n",
        "WARNING: An invalid value was given for btl_tcp_if_include.\n  Value:      en1\n",
    ),
    "all_to_all_timed_out": (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLTOALL_BASE, NumelIn=384, "
        "NumelOut=384, Timeout(ms)=1800000) ran for 1800043 milliseconds before timing out.\n",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=384)\n",
    ),
    "autotp_fused_weight_unknown": (
        "[WARNING] Unrecognized fusedkqv weight type, default to using bloom type,please check in "
        "prepare_tp_fused_qkvw() to avoid potential calculation errors\n",
        "[WARNING] Unrecognized weight type\n",
    ),
}
OTHER_TEXTS = {
    "pdsh_exported_value": ["worker-1: bash: line 0: export: `b': not a valid identifier\n"],
    "moe_capacity_above_tokens": [
        # TorchScript, and torch.compile from 0.18.6 on
        "RuntimeError: The following operation failed in the TorchScript interpreter.\n"
        "Traceback of TorchScript (most recent call last):\n"
        '  File "deepspeed/moe/sharded_moe.py", line 175, in _top_idx\n'
        "    return torch.topk(source, k=k, dim=0)[1]\n"
        "           ~~~~~~~~~~ <--- HERE\n"
        "RuntimeError: selected index k out of range\n",
        "torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call\n"
        "  Explanation: Dynamo failed to run FX node: got RuntimeError('k not in range for dimension')\n"
        "\nfrom user code:\n"
        '   File "deepspeed/moe/sharded_moe.py", line 176, in _top_idx\n'
        "    return torch.topk(source, k=k, dim=0)[1]\n",
    ],
    "hpz_small_parameter": [
        traceback(
            "IndexError: start out of range (expected to be in range of [-3, 3], but got 4)",
            ("zero/partition_parameters.py", "_partition_param_sec", "x.narrow(0, secondary_start, sec_numel)"),
        ),
    ],
    "bf16_without_gradients": [
        traceback(
            "IndexError: list index out of range",
            ("deepspeed/runtime/bf16_optimizer.py", "step", "norm = get_global_norm_of_tensors(grads)"),
            ("deepspeed/runtime/utils.py", "get_global_norm_of_tensors", "compute_buffer[0].float().detach()"),
        ),
    ],
}
NOT_ALONE = {"inference_moe_flag", "all_to_all_timed_out"}  # an unknown key, and a collective, as well
CASES = {name: ([text, *OTHER_TEXTS.get(name, ())], [similar]) for name, (text, similar) in PAIRS.items()}


@pytest.mark.parametrize("name", CASES)
def test_recognised(recognised, name):
    for text in CASES[name][0]:
        found = recognised(f"step 1\n{text}")
        assert name in found if name in NOT_ALONE else found == [name]


@pytest.mark.parametrize("name", CASES)
def test_not_recognised(recognised, name):
    for text in CASES[name][1]:
        assert name not in recognised(f"step 1\n{text}step 2\n")
