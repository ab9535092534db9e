"""Each signature with matching texts, from public threads and own runs, and with similar texts that do not match."""

import pytest
from packaging.specifiers import SpecifierSet

from dsfix import rules
from dsfix.catalogue import registry
from dsfix.explain import problems
from dsfix.explain.literals import trigger
from dsfix.explain.signature import Role

SIGNATURES = {each.id: each for each in rules.declared("dsfix.explain.signatures", "SIGNATURES")}
DEVICES = "RuntimeError: Expected all tensors to be on the same device, "


def traceback(message, *frames):
    lines = [f'  File "/site-packages/{file}", line 7, in {name}\n    {code}' for file, name, code in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, message, ""])


IN_COORDINATOR = (
    "deepspeed/runtime/zero/partitioned_param_coordinator.py",
    "record_parameters",
    "step_id = x.popleft()",
)
IN_REDUCE = (
    "deepspeed/runtime/zero/stage3.py",
    "__reduce_and_partition_ipg_grads",
    "assert len(set(p.ds_id for p in q))",
)
WEIGHTS_ONLY = "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded"

CASES = {
    "deepspeed_shadowed": (
        [
            "AttributeError: module 'deepspeed' has no attribute 'init_inference'\n",
            "AttributeError: partially initialized module 'deepspeed' has no attribute 'comm'\n",
            "AttributeError: module 'deepspeed' has no attribute '__version__'\n",
        ],
        ["AttributeError: module 'deepspeed.comm' has no attribute 'initialize_all'\n"],
    ),
    "slow_between_nodes": (
        ["train using 2 nodes is slower than one node\n", "deepspeed 多机训练很慢\n"],
        ["two nodes are faster\n", "多机训练\n"],
    ),
    "slow_with_more_gpus": (
        ["with DDP 2 GPUs are slower than 1\n", "多卡反而更慢\n"],
        ["8 GPUs are faster\n"],
    ),
    "memory_of_evaluation": (
        ["it goes OOM in the evaluation, never in training\n", "验证时OOM\n"],
        ["it goes OOM in the first step\n"],
    ),
    "out_of_memory_later": (
        ["the job OOMs after several hundred steps\n", "训练一段时间后OOM\n"],
        ["the job ends after several hundred steps\n"],
    ),
    "evaluation_counted_per_rank": (
        ["the accuracy depends on the number of GPUs\n", "单卡和多卡验证结果不一样\n"],
        ["the accuracy is 0.7\n"],
    ),
    "rate_small_for_lora": (
        ["LoRA: the loss hardly moves\n", "lora微调loss下降很慢\n"],
        ["LoRA: the loss falls\n"],
    ),
    "loss_falls_by_epochs": (
        ["the loss drops at the beginning of each epoch\n", "Full finetune的时候loss阶梯式骤降\n"],
        ["the loss drops slowly\n"],
    ),
    "page_cache_while_saving": (
        ["CPU memory increases after each checkpoint\n", "每次保存后内存都会增加\n"],
        ["CPU memory is constant\n"],
    ),
    "resuming_needs_memory": (
        ["the job is killed when resuming, not before\n", "断点续训时OOM\n"],
        ["it works when resuming\n"],
    ),
    "memory_of_pipeline": (
        ["pipeline parallel uses more memory on the first GPU\n"],
        ["pipeline parallel uses four GPUs\n"],
    ),
    "pipeline_is_slow": (
        ["pipeline parallelism is too slow with 4 stages\n"],
        ["pipeline parallelism is used\n"],
    ),
    "evaluation_is_slow": (
        ["the evaluation takes too long\n", "验证速度很慢\n"],
        ["the evaluation takes a minute\n"],
    ),
    "host_memory_of_offload": (
        ["optimizer offload uses too much RAM\n", "offload之后占用大量内存\n"],
        ["optimizer offload uses the CPU\n"],
    ),
    "killed_without_message": (
        ["the process gets killed at step 3\n", "加载模型的时候进程直接被杀\n"],
        ["the process ends at step 3\n"],
    ),
    "ulysses_without_zero": (
        [
            "AttributeError: module 'deepspeed.runtime.sequence_parallel.parallel_state_sp' has no attribute "
            "'get_model_parallel_rank'\n"
        ],
        ["AttributeError: module 'deepspeed.runtime.sequence_parallel.parallel_state_sp' has no attribute 'x'\n"],
    ),
    "scheduler_fallback_increment": (
        ["TypeError: WarmupLR.step() got an unexpected keyword argument 'increment'\n"],
        ["TypeError: WarmupLR.step() got an unexpected keyword argument 'epoch'\n"],
    ),
    "broadcast_of_leaf_refused": (
        [
            traceback(
                "RuntimeError: a leaf Variable that requires grad is being used in an in-place operation.",
                ("deepspeed/runtime/engine.py", "_broadcast_model", "dist.broadcast(p,"),
            ),
            "a leaf Variable that requires grad is being used in an in-place operation\nr0:     "
            "self._broadcast_model()\n",
        ],
        ["RuntimeError: a leaf Variable that requires grad is being used in an in-place operation.\n"],
    ),
    "windows_symbolic_link": (
        ["OSError: symbolic link privilege not held\n"],
        ["DeepSpeed-0.15.0\nFileExistsError: symbolic link exists\n"],
    ),
    "windows_source_copied_onto_package": (
        ["    shutil.copytree('.\\\\csrc', '.\\\\deepspeed\\\\ops')\n"],
        ["    shutil.copytree('.\\\\csrc', '.\\\\deepspeed\\\\ops\\\\csrc', dirs_exist_ok=True)\n"],
    ),
    "model_states_missing": (
        [traceback("AssertionError", ("state_dict_factory.py", "check_ckpt_list", "assert len(self.ckpt_list) > 0"))],
        ["assert len(self.layers) > 0\n"],
    ),
    "lightning_sets_accumulation": (
        ["MisconfigurationException: Do not set `gradient_accumulation_steps` in the DeepSpeed config\n"],
        ["gradient_accumulation_steps: 4\n"],
    ),
    "lightning_device_indices": (
        ["RuntimeError: The selected device indices [2, 3] don't match the local rank values of processes. If you\n"],
        ["The selected device is busy\n", "the device indices don't match the local rank\n"],
    ),
    "lightning_checkpoint_not_engines": (
        [
            "MisconfigurationException: DeepSpeed was unable to load the checkpoint. Ensure you passed in a DeepSpeed "
            "compatible checkpoint or a single checkpoint file\n"
        ],
        ["DeepSpeed was unable to load the extension\n"],
    ),
    "lightning_saves_by_engine": (
        [
            "TypeError: `Trainer.save_checkpoint(..., storage_options=...)` with `storage_options` arg is not "
            "supported for `DeepSpeedStrategy` as `CheckpointIO` is not used.\n",
            "NotImplementedError: `empty_init=True` is not a valid choice with `DeepSpeedStrategy` when ZeRO stage 3 "
            "is enabled.\n",
        ],
        ["`storage_options` arg is not supported for `FSDPStrategy`\n"],
    ),
    "cut_in_lightning_trainer": (
        [
            traceback("", ("pytorch_lightning/utilities/argparse.py", "insert_env_defaults", "return fn(self)")),
        ],
        [
            traceback(
                "ValueError: x", ("pytorch_lightning/utilities/argparse.py", "insert_env_defaults", "return fn(self)")
            ),
        ],
    ),
    "device_placement_with_engine": (
        ["ValueError: You can't customize device placements with DeepSpeed or Megatron-LM.\n"],
        ["ValueError: You can't customize the device\n"],
    ),
    "zero_section_missing": (
        ["ValueError: Please specify the ZeRO optimization config in the DeepSpeed config.\n"],
        ["Please specify the ZeRO stage\n"],
    ),
    "plugin_given_again": (
        [
            "NotImplementedError: You cannot pass in a `deepspeed_plugin` when creating a second `Accelerator`.\n",
            "ValueError: You cannot pass in both `deepspeed_plugins` and `deepspeed_plugin`.\n",
            "TypeError: `deepspeed_plugin` must be a DeepSpeedPlugin object.\n",
        ],
        ["`fsdp_plugin` must be a FullyShardedDataParallelPlugin object.\n"],
    ),
    "deepspeed_too_old": (
        [
            "ImportError: DeepSpeed version must be >= 0.9.3. Please update DeepSpeed.\n",
            "ImportError: Deepspeed ALST/Ulysses requires deepspeed>=0.18.2. Please update DeepSpeed\n",
            "ImportError: PyTorch >= 2.6 requires DeepSpeed >= 0.16.0. Detected another one\n",
            "ValueError: nossh launcher requires DeepSpeed >= 0.14.5\n",
        ],
        ["ImportError: torch version must be >= 2.0.\n"],
    ),
    "launch_modes_exclude": (
        ["ValueError: You can only use one of `--cpu`, `--multi_gpu`, `--tpu`, `--use_deepspeed`\n"],
        ["You can only use one of --stage and --config\n"],
    ),
    "accelerator_used_before": (
        [
            "Please make sure to properly initialize your accelerator via `accelerator = Accelerator()` before using\n",
            "ValueError: AcceleratorState has already been initialized and cannot be changed, restart your runtime\n",
        ],
        ["initialize your accelerator\n"],
    ),
    "clipping_by_engine": (
        [
            "Exception: DeepSpeed and FSDP  do not support `clip_grad_value_`. Use `clip_grad_norm_` instead.\n",
            "MisconfigurationException: DeepSpeed does not support clipping gradients by value.\n",
        ],
        ["FSDP does not support clipping by value\n"],
    ),
    "precision_needs_gpu": (
        [
            "ValueError: fp16 mixed precision requires a GPU (not 'cpu').\n",
            "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.\n",
        ],
        ["mixed precision requires care\n"],
    ),
    "batch_size_not_found_under_zero3": (
        ["NotImplementedError: `auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3. Please consider\n"],
        ["auto_find_batch_size=True\n"],
    ),
    "cut_in_prepare": (
        [traceback("", ("accelerate/accelerator.py", "prepare", "result = self._prepare_deepspeed(*args)"))],
        [traceback("ValueError: 1", ("accelerate/accelerator.py", "prepare", "result = self._prepare_deepspeed()"))],
    ),
    "cut_in_accelerator": (
        [traceback("", ("accelerate/accelerator.py", "__init__", "plugins = AcceleratorState().deepspeed_plugins"))],
        [traceback("ValueError: 1", ("accelerate/accelerator.py", "__init__", "self.state = AcceleratorState()"))],
    ),
    "hostname_without_addresses": (
        [
            "subprocess.CalledProcessError: Command '['hostname -I']' returned non-zero exit status 1\n",
            "subprocess.CalledProcessError: Command '['hostname', '-I']' returned non-zero exit status 1.\n",
        ],
        ["subprocess.CalledProcessError: Command '['ssh a hostname -I']' returned non-zero exit status 255.\n"],
    ),
    "cpu_adam_without_cuda": (
        ["cpu_adam cuda is missing or is incompatible with installed torch, only cpu ops can be compiled!\n"],
        ["cpu_adam ............... [NO] ....... [OKAY]\n"],
    ),
    "rank_arithmetic_error": (
        [
            "failed (exitcode: -8) local_rank: 6 (pid: 58423) of binary: /usr/bin/python\n",
            "exits with return code -8\n",
        ],
        ["failed (exitcode: 8) local_rank: 6 (pid: 58423) of binary: /usr/bin/python\n"],
    ),
    "nccl_shared_memory": (
        ["include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1 (size 9637888)\n"],
        ["NCCL INFO Using shared memory segment nccl-shm-recv-1\n"],
    ),
    "nvcc_missing": (
        [
            "FileNotFoundError: [Errno 2] No such file or directory: '/opt/env/bin/nvcc'\n",
            # the end of the traceback is missing
            "Traceback (most recent call last):\n"
            '  File "op_builder/builder.py", line 43, in installed_cuda_version\n'
            '    output = subprocess.check_output([cuda_home + "/bin/nvcc", "-V"], universal_newlines=True)\n',
        ],
        ["FileNotFoundError: [Errno 2] No such file or directory: '/opt/env/bin/gcc'\n"],
    ),
    "torch_missing_at_build": (
        [
            " [WARNING]  unable to import torch, please install it if you want to pre-compile any deepspeed ops.\n",
            "[WARNING] Unable to import torch, pre-compiling ops will be disabled. Please visit\n",
        ],
        ["ModuleNotFoundError: No module named 'torch'\n"],
    ),
    "windows_source_build": (
        [
            '  File "C:\\Temp\\pip-install-x\\deepspeed_'
            + "0123456789abcdef" * 2
            + '\\setup.py", line 201, in <module>\n',
        ],
        ['  File "/tmp/pip-install-x/deepspeed_' + "0123456789abcdef" * 2 + '/setup.py", line 201, in <module>\n'],
    ),
    "heads_not_divisible": (
        ["AssertionError: num_heads (52) must be divisible by mp_size (8)\n"],
        ["AssertionError: hidden_size must be divisible by num_heads\n"],
    ),
    "diffusers_pipeline_not_a_module": (
        ["AttributeError: 'StableDiffusionPipeline' object has no attribute 'children'\n"],
        ["AttributeError: 'StableDiffusionPipeline' object has no attribute 'unet'\n"],
    ),
    "kernel_execution_error": (
        ["!!!! kernel execution error. (m: 768, n: 4608, k: 3072, error: 13)\n"],
        ["kernel execution took 5 ms\n"],
    ),
    "policy_is_a_class": (
        ["TypeError: argument of type 'ABCMeta' is not iterable\n"],
        ["TypeError: argument of type 'NoneType' is not iterable\n"],
    ),
    "cut_in_init_inference": (
        [
            "Traceback (most recent call last):\n"
            '  File "/site-packages/deepspeed/__init__.py", line 7, in init_inference\n'
            "    engine = InferenceEngine(model, config=ds_inference_config)\n",
            "Traceback (most recent call last):\n"
            '  File "generate.py", line 7, in <module>\n'
            "    model = deepspeed.init_inference(model, dtype=torch.half)\n",
            '  File "/site-packages/deepspeed/module_inject/replace_module.py", line 7, in _replace_module\n'
            "    _, layer_id = _replace_module(child, policies)\n",
        ],
        [
            traceback(
                "TypeError: one",
                ("deepspeed/__init__.py", "init_inference", "engine = InferenceEngine(model, config=config)"),
            )
        ],
    ),
    "init_inference_fails": (
        [
            "`init_inference()` fails with the newest releases\n",
            "init_inference 报错\n",
            "Errors in the inference tutorial\n".replace("the ", ""),
            "Failed to use init_inference\n",
        ],
        ["ZeRO-Inference: error with .init_inference()\n", "init_inference is called once\n"],
    ),
    "inference_loader_of_dictionary": (
        [
            traceback(
                "AttributeError: 'dict' object has no attribute 'load'",
                ("deepspeed/inference/engine.py", "_load_checkpoint", "load_path, checkpoint, _ = sd_loader.load("),
            )
        ],
        ["AttributeError: 'dict' object has no attribute 'load'\n"],
    ),
    "meta_tensors_without_kernels": (
        [
            "Loading a checkpoint fails without kernel injection\n",
            "load_checkpoint raises when not using replace_with_kernel_inject\n",
        ],
        ["Loading a checkpoint with kernel injection\n"],
    ),
    "inference_checkpoint_type": (
        ["AssertionError: DeepSpeed checkpoint type is not supported\n"],
        ["this checkpoint type is supported\n"],
    ),
    "init_inference_arguments": (
        [
            "ValueError: Data type torch.int8 is not supported by cuda accelerator\n",
            "ValueError: torch.bfloat16 not supported, valid dtype: [None, torch.float16]\n",
            "ValueError: mp_size must be an int >= 1, got 0\n",
        ],
        ["ValueError: Data type torch.int8 is unknown\n"],
    ),
    "int8_inference": (
        [
            "Int8 inference does nothing for my model\n",
            "DeepSpeed Inference config is {'heads': 20, 'q_int8': True}\n",
            "I call init_inference with dtype torch.int8\n",
        ],
        ["inference in fp16\n", "DeepSpeed Inference config is {'heads': 20, 'q_int8': False}\n"],
    ),
    "inference_gives_no_speedup": (
        [
            "DeepSpeed does not improve the inference\n",
            "DeepSpeed-inference 2GPU performance is lower than 1GPU\n",
        ],
        ["inference is fast with DeepSpeed\n"],
    ),
    "zero_inference_quantization": (
        ["AssertionError: Model weight is expected in half.\n"],
        ["Model weight is in half\n"],
    ),
    "hybrid_engine_tensor_parallel": (
        [
            "an error when inference_tp_size > 1\n",
            "   --inference_tp_size 4 \\\n",
            "step 3 with tensor parallel and HE fails\n",
        ],
        ["   --inference_tp_size 1 \\\n"],
    ),
    "hybrid_engine_container": (
        ["AttributeError: 'DS_BloomContainer' object has no attribute 'set_params_wo_copy'\n"],
        ["AttributeError: 'DS_BloomContainer' object has no attribute 'policy_name'\n"],
    ),
    "injection_policy_gives_nothing": (
        ["AssertionError: qkvw can't be None\n", "AssertionError: Policy cannot be None\n"],
        ["AssertionError: model can't be None\n"],
    ),
    "meta_tensors_of_this_model": (
        ["AssertionError: Meta tensors are not supported for this model currently.\n"],
        ["Meta tensors are supported\n"],
    ),
    "kernels_and_long_texts": (
        [
            "DeepSpeed-Inference: with long prompts it fails\n",
            "Models fail for long inputs during inference\n",
        ],
        ["training with long sequences\n", "inference with long prompts is supported\n"],
    ),
    "kernels_fail_autotp_works": (
        [
            "With replace_with_kernel_inject=False it works.\nWith replace_with_kernel_inject=True I get an error.\n",
        ],
        ["With replace_with_kernel_inject=False it works.\n"],
    ),
    "linear_layer_of_0_7_0": (
        ["TypeError: empty() received an invalid combination of arguments - got (Parameter, device=int)\n"],
        ["TypeError: empty() received an invalid combination of arguments - got (str, device=int)\n"],
    ),
    "inference_loader_argument": (
        [traceback("TypeError: get_sd_loader_json() missing 1 required positional argument: 'checkpoint_engine'")],
        [
            # a release that passes it
            "DeepSpeed info: version=0.9.5, git-hash=unknown\n"
            + traceback("TypeError: get_sd_loader() missing 1 required positional argument: 'checkpoint_engine'"),
        ],
    ),
    "training_config_for_inference": (
        [
            "pydantic.ValidationError: 2 validation errors for DeepSpeedInferenceConfig\nzero -> zero_optimization\n"
            "  none is not an allowed value\n"
        ],
        ["pydantic.ValidationError: 1 validation error for DeepSpeedInferenceConfig\ndtype\n  none\n"],
    ),
    "moe_group_without_name": (
        [traceback("KeyError: 'name'", ("deepspeed/moe/utils.py", "split", "groups[group['name']] = {}"))],
        [traceback("KeyError: 'name'", ("train.py", "main", "config['name']"))],
    ),
    "pydantic_2_with_old_release": (
        [
            "pydantic.errors.PydanticUserError: A non-annotated attribute was detected: `enabled = True`. All model\n",
            "AttributeError: 'FieldInfo' object has no attribute 'field_info'\n",
            "deepspeed does not work with pydantic 2.1\n",
        ],
        ["pydantic.errors.PydanticUserError: A non-annotated attribute was detected: `size = 1`. All model\n"],
    ),
    "accelerate_config_keys": (
        ["ValueError: The config file at machine.yaml had unknown keys (['lr_scheduler']), please try upgrading\n"],
        ["ValueError: The config file at machine.yaml is empty\n"],
    ),
    "qwen_lora_zero3": (
        ["RuntimeError: ZeRO3 is incompatible with LoRA when finetuning on base model.\n"],
        ["ZeRO3 is incompatible with pipelines.\n"],
    ),
    "evaluation_needs_zero3": (
        ["ValueError: ZeRO inference only makes sense with ZeRO Stage 3 - please adjust your config\n"],
        ["ZeRO inference with ZeRO Stage 3\n"],
    ),
    "optimizer_of_another_model": (
        [traceback("KeyError: Parameter containing:", ("zero/stage_1_and_2.py", "f", "name = self.param_names[lp]"))],
        ["Parameter containing: tensor([1.])\n"],
    ),
    "pipeline_shapes_differ": (
        ["RuntimeError: Mismatch in shape: grad_output[0] has a shape of torch.Size([8, 4]) and output[0] has\n"],
        ["RuntimeError: Mismatch in shape: grad_input\n"],
    ),
    "empty_tensor_indexed": (
        ["IndexError: index 0 is out of bounds for dimension 0 with size 0\n"],
        ["IndexError: index 7 is out of bounds for dimension 0 with size 4\n"],
    ),
    "indexed_tensor_on_cpu": (
        ["RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)\n"],
        ["RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cuda:0)\n"],
    ),
    "pipeline_stages_and_ranks": (
        ["RuntimeError: num_stages (3) must divide distributed world size (8)\n"],
        ["num_stages (4)\n"],
    ),
    "pipeline_training_without_gradients": (
        ["RuntimeError: train_batch() requires gradients enabled. Use eval_batch() instead.\n"],
        ["train_batch() took 5 s\n"],
    ),
    "pipeline_bf16_stage": (["NotImplementedError: PP+BF16 only work for ZeRO Stage 1\n"], ["PP+BF16\n"]),
    "pipeline_layers_not_found": (
        ["RuntimeError: Partitioning 'block' found no valid layers to partition.\n"],
        ["Partitioning pipeline stages with method type:block\n"],
    ),
    "moe_batch_too_small": (
        ["AssertionError: No. of tokens (batch-size) should be greater than min_capacity. Either set\n"],
        ["min_capacity: 4\n"],
    ),
    "moe_group_mixed": (["AssertionError: All params in MoE group must be MoE params\n"], ["MoE params: 8\n"]),
    "moe_top_k": (
        ["ValueError: Only top-1 and top-2 gatings are supported.\n"],
        ["ValueError: Only top-1 is supported.\n"],
    ),
    "operators_of_another_torch": (
        ["RuntimeError: PyTorch version mismatch! DeepSpeed ops were compiled\n"],
        ["PyTorch version: 2.1\n"],
    ),
    "operator_needs_newer_gpu": (
        ["RuntimeError: Unable to load fp_quantizer op due to no compute capabilities remaining after filtering\n"],
        ["Unable to load the op\n"],
    ),
    "operator_without_visible_gpu": (
        ["RuntimeError: DeepSpeed JIT builder for 'x' found no CUDA devices. Set TORCH_CUDA_ARCH_LIST or make\n"],
        ["TORCH_CUDA_ARCH_LIST is not set\n"],
    ),
    "launcher_cannot_select": (
        ["ValueError: openmpi backend does not support limiting num nodes/gpus\n"],
        ["backend does not support bf16\n"],
    ),
    "launcher_node_rank": (
        ["AssertionError: Launching training without ssh, but --node_rank is not set correctly.\n"],
        ["Launching training without ssh\n"],
    ),
    "config_type": (
        ["ValueError: 'config' argument expected string or dictionary, got <class 'NoneType'>\n"],
        ["'config' argument is deprecated\n"],
    ),
    "parameters_unused_stage2": (
        [
            "AssertionError: This assert indicates that your module has parameters that\n were not used\n",
        ],
        ["This error indicates that your module has parameters that were not used in producing loss.\n"],
    ),
    "precision_without_accelerator": (
        [
            "SystemError: Cannot use fp16 without accelerator.\n",
            "SystemError: Accelerator is not detected, cannot perform low precision training (e.g., fp16, bf16).\n",
        ],
        ["Setting ds_accelerator to cpu (auto detect)\n"],
    ),
    "gradients_not_available": (
        ["ValueError: Gradients are only available immediately after backward and before engine step\n"],
        ["Gradients are only available on rank 0\n"],
    ),
    "leaf_modules_not_found": (
        ["ValueError: No modules of type [<class 'moe.Block'>] found in model Model(\n"],
        ["No modules were replaced\n"],
    ),
    "training_data_type": (["ValueError: Training data must be a torch Dataset\n"], ["Training data: 8 files\n"]),
    "device_map_several_devices": (
        [
            traceback(f"{DEVICES}but found at least two devices, cuda:7 and cuda:0!"),
            traceback(
                f"{DEVICES}but got index is on cuda:0, different from other tensors on cuda:7 "
                "(when checking argument in method wrapper_CUDA__index_select)"
            ),
            traceback(f"{DEVICES}but found at least two devices, cuda:1 and cuda:10! (argument index in embedding)"),
        ],
        [traceback(f"{DEVICES}but got index is on cpu, different from other tensors on cuda:7"), "cuda:0 and cuda:7\n"],
    ),
    "module_left_on_cpu": (
        [
            traceback(f"{DEVICES}but found at least two devices, cuda:0 and cpu!"),
            traceback(f"{DEVICES}but got mat1 is on cpu, different from other tensors on cuda:3"),
        ],
        [
            traceback(f"{DEVICES}but found at least two devices, cuda:0 and cuda:1!"),
            # the optimizer's own problem is more specific
            traceback(
                f"{DEVICES}but found at least two devices, cuda:0 and cpu!",
                ("deepspeed/runtime/zero/stage3.py", "unscale_and_clip_grads", "grad.mul_(1. / combined_scale)"),
            ),
        ],
    ),
    "device_map_refused": (
        [
            traceback("ValueError: DeepSpeed Zero-3 is not compatible with passing a `device_map`."),
            traceback(
                "ValueError: DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True` or with passing a "
                "`device_map`."
            ),
            traceback(
                "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed "
                "mode. Please rerun your script specifying `--num_processes=1`"
            ),
        ],
        ["DeepSpeed Zero-3 is not compatible with `another`\n", "loaded with device_map='auto'\n"],
    ),
    "recomputed_empty": (
        [
            "ZeRO-3 + gradient checkpointing: shape mismatch during recompute ([4096] -> [0])\n",
            "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
            "tensors have different metadata than during the forward pass.\ntensor at position 19:\n"
            "saved metadata: {'shape': torch.Size([3584]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}\n"
            "recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}\n",
        ],
        [
            "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
            "tensors have different metadata than during the forward pass.\ntensor at position 19:\n"
            "saved metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16}\n"
            "recomputed metadata: {'shape': torch.Size([3584]), 'dtype': torch.bfloat16}\n"
        ],
    ),
    "reentrant_shared_module": (
        [
            "AssertionError: The parameter 155 has already been reduced.             Gradient computed twice for this "
            "partition.             Multiple gradient reduction is currently not supported\n",
            "Stage 2: Gradient computed twice for this partition, what is wrong?\n",
            traceback("AssertionError", IN_REDUCE),
        ],
        ["the parameter has already been reduced. Once\n", traceback("AssertionError", ("a.py", "f", IN_REDUCE[2]))],
    ),
    "inflight_params": (
        ["RuntimeError: still have inflight params [{'id': 5, 'status': 'AVAILABLE', 'numel': 64}]\n"],
        ["RuntimeError: still have inflight requests\n"],
    ),
    "fetch_trace_out_of_step": (
        [traceback("IndexError: pop from an empty deque", IN_COORDINATOR)],
        [traceback("IndexError: pop from an empty deque", ("vllm/scheduler.py", "schedule", "self.waiting.popleft()"))],
    ),
    "hook_registration_renamed": (
        ["AttributeError: 'DeepSpeedZeRoOffload' object has no attribute '_register_hooks_recursively'\n"],
        ["AttributeError: 'Model' object has no attribute '_register_hooks'\n"],
    ),
    "gathered_dtypes_differ": (
        ["TypeError: output tensor must have the same type as input tensor\n"],
        ["ValueError: output tensor size must be equal to world_size times input tensor size\n"],
    ),
    "trainable_dtypes_differ": (
        [
            traceback(
                "AssertionError", ("deepspeed/runtime/zero/utils.py", "defragment", "assert len(set(t.dtype)) == 1")
            )
        ],
        [traceback("torch.OutOfMemoryError: CUDA out of memory", ("zero/utils.py", "defragment", "torch.empty(1)"))],
    ),
    "frozen_group": (
        [
            traceback(
                "ValueError: torch.cat(): expected a non-empty list of Tensors",
                ("zero/stage_1_and_2.py", "flatten_dense_tensors_aligned", "return self.flatten(tensors)"),
                ("torch/_utils.py", "_flatten_dense_tensors", "return torch._C._nn.flatten_dense_tensors(tensors)"),
            ),
            traceback(
                "RuntimeError: torch.cat(): expected a non-empty list of Tensors",
                ("deepspeed/runtime/bf16_optimizer.py", "_flatten_dense_tensors_aligned", "return self.flatten(x)"),
            ),
            traceback(
                "IndexError: list index out of range",
                ("zero/stage_1_and_2.py", "__init__", "param_dtype = self.bit16_groups[i][0].dtype"),
            ),
        ],
        [
            traceback(
                "ValueError: torch.cat(): expected a non-empty list of Tensors",
                ("zero/stage_1_and_2.py", "get_flat_partition", "return self.flatten(tensors)"),
            ),
            traceback("IndexError: list index out of range", ("zero/stage_1_and_2.py", "__init__", "x = groups[0]")),
        ],
    ),
    "swapped_parameters": (
        ["RuntimeError: _apply(): Couldn't swap Linear.weight\n"],
        ["RuntimeError: Cannot swap t1 because it has weakref associated with it\n"],
    ),
    "module_outside_engine": (
        [
            "RuntimeError: size mismatch, got 412, 412x4096,0\n",
            "RuntimeError: 'weight' must be 2-D\n",
            "RuntimeError: weight should have at least three dimensions\n",
            "RuntimeError: size mismatch, got input (4), mat (4x8), vec (0)\n",
            "RuntimeError: mat2 must be a matrix, got 1-D tensor\n",
            "The expanded size of the tensor (5) must match the existing size (0) at non-singleton dimension 1\n",
            "RuntimeError: setStorage: sizes [8], strides [1] are out of bounds for storage of size 0\n",
        ],
        [
            "RuntimeError: weight must be 2-D or 3-D\n",
            "RuntimeError: size mismatch, got input (4), mat (4x8), vec (16)\n",
            "RuntimeError: mat2 must be a matrix, got 3-D tensor\n",
        ],
    ),
    "cpu_split_view": (
        [traceback("RuntimeError: Output 0 of SplitBackward0 is a view", ("deepspeed/runtime/utils.py", "f", "x"))],
        [traceback("RuntimeError: Output 0 of SplitBackward0 is a view", ("model/attention.py", "forward", "x += 1"))],
    ),
    "several_backwards": (
        [
            traceback(
                "TypeError: 'NoneType' object is not iterable",
                ("zero/stage_1_and_2.py", "independent_gradient_partition_epilogue", "for a, b in zip(x, y):"),
            )
        ],
        [traceback("TypeError: 'NoneType' object is not iterable", ("train.py", "main", "for batch in loader:"))],
    ),
    "no_sync_refused": (
        [
            "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage "
            "2\n",
            # typed by hand
            "AssertionError: no sync context manager is incompatible with gradientpartitioning logic of ZeRo stage 3\n",
        ],
        ["AssertionError: no_sync context manager reentry is unsupported\n"],
    ),
    "step_inside_no_sync": (
        ["AssertionError: It is illegal to call Engine.step() inside no_sync context manager\n"],
        ["It is illegal to call Engine.step() twice\n"],
    ),
    "autocast_outside": (
        [
            "AssertionError: torch.autocast is enabled outside DeepSpeed, but not in the DeepSpeed config. Please "
            "enable\n",
        ],
        # the warning of 0.17.6 and later
        ["[WARNING] torch.autocast is enabled outside DeepSpeed but disabled within the DeepSpeed engine.\n"],
    ),
    "loss_scale_at_minimum": (
        ["Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"],
        ["[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1\n"],
    ),
    "onebit_diverges": (
        ["1-bit Adam: the loss scale overflows at each step\n", "loss scale falls for ever with OneBitAdam\n"],
        ["1-bit Adam with fp16\n", "overflow with Adam at bit 1\n", "OnebitAdam is faster\n"],
    ),
    "adagrad_without_state": (
        [
            traceback(
                "KeyError: 'sum'",
                ("deepspeed/runtime/engine.py", "_take_model_step", "self.optimizer.step()"),
                ("torch/optim/adagrad.py", "_init_group", 'state_sums.append(state["sum"])'),
            )
        ],
        [traceback("KeyError: 'sum'", ("train.py", "main", 'print(state["sum"])'))],
    ),
    "half_batch_norm": (
        [
            traceback(
                "RuntimeError: expected scalar type BFloat16 but found Float",
                ("torch/nn/modules/batchnorm.py", "forward", "return F.batch_norm("),
                ("torch/nn/functional.py", "batch_norm", "return torch.batch_norm("),
            )
        ],
        [
            traceback(
                "RuntimeError: expected scalar type BFloat16 but found Float",
                ("torch/nn/modules/linear.py", "forward", "return F.linear(input, self.weight, self.bias)"),
            )
        ],
    ),
    "torch_elastic_names": (
        [
            "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' (/a/api.py)\n",
            "ImportError: cannot import name '_get_socket_with_port' from "
            "'torch.distributed.elastic.agent.server.api'\n",
            # shortened
            "ImportError: cannot import name 'log' from 'torch.distributed.elastic...'\n",
            "ImportError: cannot import name 'log' from 'torch...server.api'\n",
            "cannot import name 'log' from 'torch.distributed.elastic'\n",
            "ImportError: cannot import name log from torch.distributed.elastic.agent.server.api\n",
            "    from torch.distributed.elastic.agent.server.api import log, _get_socket_with_port\n"
            "ImportError: cannot import name 'log'\n",
        ],
        [
            "ImportError: cannot import name 'log' from 'torch.distributed.elastic.utils' (/a/utils.py)\n",
            "ImportError: cannot import name 'log' from 'torchvision...utils'\n",
            "ImportError: cannot import name 'log_softmax' from 'torch...functional'\n",
            "ImportError: cannot import name 'log'\n",
        ],
    ),
    "module_hidden_by_file": (
        ["ModuleNotFoundError: No module named 'wandb.sdk'; 'wandb' is not a package\n"],
        ["ModuleNotFoundError: No module named 'wandb.sdk'\n"],
    ),
    "deepspeed_incomplete": (
        [
            "ModuleNotFoundError: No module named 'deepspeed.ops.op_builder'\n",
            "No module named 'deepspeed.accelerator'\n",
        ],
        ["ModuleNotFoundError: No module named 'deepspeed.ops.op_builder.builder_x'\n"],
    ),
    "deepspeed_not_yet_imported": (
        ["AttributeError: module 'deepspeed' has no attribute 'utils'\n"],
        ["AttributeError: module 'deepspeed' has no attribute 'magic'\n"],
    ),
    "numpy_bufsize": (
        ["ImportError: cannot import name 'BUFSIZE' from 'numpy' (/a/numpy/__init__.py)\n"],
        ["ImportError: cannot import name 'NAN' from 'numpy' (/a/numpy/__init__.py)\n"],
    ),
    "built_for_rocm": (
        [
            "/opt/rocm-6.0.0/include/hip/hip_runtime.h:81:9: error: no member named x\n",
            "Build issues on ROCm with random_ltd\n",
        ],
        ["/opt/rocm-6.0.0/include/hip/hip_runtime.h:81:9: warning: x\n", "DeepSpeed runs on ROCm\n"],
    ),
    "rocm_and_cuda_header": (
        ["In rocm/pytorch: CUDAContext.h:5:10: fatal error: 'cuda_runtime_api.h' file not found\n"],
        ["CUDAContext.h:5:10: fatal error: 'cuda_runtime_api.h' file not found\n"],
    ),
    "gds_without_toolkit": (
        [
            traceback(
                "TypeError: expected str, bytes or os.PathLike object, not NoneType",
                ("op_builder/gds.py", "is_compatible", 'CUDA_LIB64 = os.path.join(CUDA_HOME, "lib64")'),
            ),
        ],
        [
            traceback(
                "TypeError: expected str, bytes or os.PathLike object, not NoneType",
                ("op_builder/async_io.py", "extra_ldflags", 'CUDA_LIB64 = os.path.join(CUDA_HOME, "lib64")'),
            ),
        ],
    ),
    "evoformer_not_built": (
        [
            "ImportError: /home/me/.cache/torch_extensions/py310/evoformer_attn/evoformer_attn.so\n",
            "CUTLASS_PATH environment variable is not set to a valid path\n",
        ],
        [
            "evoformer_attn ......... [NO] ....... [NO]\n",
            "[WARNING]  Please specify the CUTLASS repo directory as environment variable $CUTLASS_PATH\n",
        ],
    ),
    "compiled_operator_missing": (
        ["ModuleNotFoundError: No module named 'deepspeed.ops.adam.cpu_adam_op'\n"],
        ["ModuleNotFoundError: No module named 'deepspeed.ops.op_builder'\n"],
    ),
    "cut_while_building": (
        [
            'File "/site-packages/deepspeed/ops/op_builder/builder.py", line 445, in load\n'
            "    return self.jit_load(verbose)\n",
        ],
        [
            'File "/site-packages/deepspeed/ops/op_builder/builder.py", line 445, in load\n'
            "    return self.jit_load(verbose)\nKeyError: 1\n",
        ],
    ),
    "cuda_library_not_found": (
        [
            "/usr/bin/ld: cannot find -lcurand: No such file or directory\ncollect2: error: ld returned 1\n",
            "cpu_adam: build.ninja lacks -L/usr/local/cuda/lib64\n",
        ],
        [
            "/usr/bin/ld: cannot find -lcurandom: No such file or directory\n",
            "c++ cpu_adam.o -shared -L/usr/local/cuda/lib64 -lcurand -o cpu_adam.so\n",
        ],
    ),
    "extension_build_failed": (
        [
            "RuntimeError: Error building extension 'fused_adam'\n",
            "FAILED: multi_tensor_adam.cuda.o \n",
            "it cannot build 'cpu_adam'\n",
        ],
        ["Building extension module fused_adam...\n", "FAILED: 3 of 7 downloads\n"],
    ),
    "cuda_home_missing": (
        [
            "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA "
            "op(s)\n",
            "[FAIL] nvcc missing\n",
        ],
        ["CUDA_HOME does not exist on this node, using the CPU\n"],
    ),
    "optimizer_del_masks_error": (
        ["AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"],
        ["AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'param_groups'\n"],
    ),
    "extension_of_another_version": (
        [
            "AttributeError: module 'deepspeed_shm_comm' has no attribute 'vector_kernel_level'\n",
            "ImportError: /root/.cache/torch_extensions/py311_cu124/cpu_adam/cpu_adam.so: undefined symbol: _ZN3c10\n",
        ],
        ["AttributeError: module 'deepspeed_shm_comm' has no attribute 'vector'\n"],
    ),
    "extension_lock": (
        [traceback("KeyboardInterrupt", ("torch/utils/file_baton.py", "wait", "time.sleep(self.wait_seconds)"))],
        ["Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...\n"],
    ),
    "ends_at_extensions": (
        ["Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...\n" * 2],
        [
            "Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...\n"
            "Loading extension module cpu_adam...\nTime to load cpu_adam op: 2.3 seconds\n"
        ],
    ),
    "triton_autotune_directory": (
        [
            "df: /root/.triton/autotune: No such file or directory\n",
            traceback(
                "FileNotFoundError: [Errno 2] No such file or directory: "
                "'/.triton/autotune/Fp16Matmul_4d_kernel.pickle'",
                ("triton/matmul_ext.py", "matmul_ext_update_autotune_table", "fp16_matmul._update_autotune_table()"),
            ),
        ],
        ["df: /root/.triton: No such file or directory\n"],
    ),
    "weights_only_load": (
        [
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded\n\tWeightsUnpickler "
            "error: Unsupported global: GLOBAL deepspeed.runtime.fp16.loss_scaler.LossScaler was not an allowed "
            "global\n",
        ],
        [
            "FutureWarning: You are using `torch.load` with `weights_only=False`\n",
            "_pickle.UnpicklingError: Weights only load failed. Re-running it\nUnsupported operand 118\n",
        ],
    ),
    "zero_to_fp32_copy_weights_only": (
        [
            traceback(
                WEIGHTS_ONLY,
                (f"{place}/zero_to_fp32.py", "<module>", "convert_zero_checkpoint_to_fp32_state_dict("),
                (f"{place}/zero_to_fp32.py", "parse_optim_states", "state_dict = torch.load(f, map_location=device)"),
            )
            for place in ("out", "deepspeed/utils")  # as a script, and by python -m
        ],
        [
            traceback(
                WEIGHTS_ONLY,
                ("train.py", "<module>", "weights = get_fp32_state_dict_from_zero_checkpoint(out)"),
                ("deepspeed/utils/zero_to_fp32.py", "parse_optim_states", "state_dict = torch.load(f)"),
            )
        ],
    ),
    "zero_to_fp32_devices": (
        [
            traceback(
                f"{DEVICES}but found at least two devices, cuda:1 and cuda:0!",
                ("out/zero_to_fp32.py", "_zero2_merge_trainable_params", "full = torch.cat(partitions, 0)"),
            )
        ],
        [
            traceback(
                f"{DEVICES}but found at least two devices, cuda:1 and cuda:0!",
                ("train.py", "main", "full = torch.cat(partitions, 0)"),
            )
        ],
    ),
    "zero_to_fp32_counts": (
        ["ValueError: unknown zero stage 1\n", "ValueError: consumed 10 numels out of 16 - something is wrong\n"],
        ["the zero stage is unknown\n", "Detected checkpoint of type zero stage 3, world_size: 2\n"],
    ),
    "another_world_size": (
        [
            "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 "
            "but the current world size is 4. Automatic adjustment\n",
        ],
        ["the current world size is 4\n"],
    ),
    "checkpoint_writer_roles": (
        ["AttributeError: 'UniversalParallelInfo' object has no attribute 'dp_rank'\n"],
        ["AttributeError: 'PipelineParallelGrid' object has no attribute 'dp_rank'\n"],
    ),
    "mixed_checkpoint_directory": (
        ["ValueError: Expected 8 of '*_optim_states.pt' under 'out/global_step100' but found 12 files. Possibly\n"],
        ["FileNotFoundError: can't find *_optim_states.pt files in directory 'out'\n"],
    ),
    "zero_to_fp32_shared_parameters": (
        [
            "zero_to_fp32 misses some parameters\n",
            "zero_to_fp32.py ignores some layers of the model\n",
            "Missing weight params after training with deepspeed-stage2\n",
        ],
        ["zero_to_fp32 writes all parameters\n"],
    ),
    "not_a_zero_checkpoint": (
        [
            "FileNotFoundError: Directory 'out/global_step7' doesn't exist\n",
        ],
        ["FileNotFoundError: [Errno 2] No such file or directory: 'out'\n"],
    ),
    "converters_need_layer_files": (
        [
            traceback(
                "KeyError: (0, 0)",
                ("deepspeed_checkpoint.py", "get_state", "for names in self.transformer_file_map[(tp, pp)]:"),
            ),
            "Checkpoints are no longer saved layer-by-layer\n",
        ],
        ["KeyError: (0, 0)\n"],
    ),
    "resuming_an_adapter": (
        [
            'we cannot resume the run:\n"base_model.model.model.layers.3.mlp.up_proj.weight",\n',
            "lora resume gives an error\n",
            "resume training lora with zero-2\n".replace("training ", ""),
            "LoRA 断点续训\n",
            "继续训练 checkpoint-100 时\nRuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n",
        ],
        ["the lora is resumed\n".replace("resumed", "merged"), "resume the training\n"],
    ),
    "mmengine_checkpoint": (
        [
            "Traceback (most recent call last):\n"
            '  File "/site-packages/mmengine/runner/_flexible_runner.py", line 7, in load_or_resume\n'
            "    self.resume(resume_from)\n",
        ],
        ['  File "/site-packages/mmengine/runner/_flexible_runner.py", line 7, in train\n'],
    ),
    "checkpoint_on_several_nodes": (
        [
            "I copy all optimizer states to all nodes by hand\n",
            "save_state fails on multi-node\n",
            "多机训练时保存模型\n",
        ],
        ["training on all nodes\n"],
    ),
    "saving_checkpoint_fails": (
        [
            "Checkpoint saving fails with DeepSpeed\n",
            "保存checkpoint时报错\n",
        ],
        ["Checkpoint saving takes a minute\n"],
    ),
    "weights_out_of_zero3": (
        [
            "how to get the model reconstructed for saving\n",
            "state_dict returns some placeholder\n",
            "gather the full weights under ZeRO-3\n",
        ],
        ["gather the full weights under ZeRO-2\n"],
    ),
    "zero_to_fp32_fails": (
        ["I run zero_to_fp32.py and it reports an error\n", "unable to use zero_to_fp32\n"],
        ["I run zero_to_fp32.py\n"],
    ),
    "save_hooks_get_no_weights": (
        [
            traceback(
                "IndexError: pop from empty list",
                ("train.py", "save_model_hook", "weights.pop()"),
            ),
            "`weights` in hooks is empty with DeepSpeed\n",
        ],
        ["IndexError: pop from empty list\n"],
    ),
    "saving_under_zero3": (
        ["With zero_stage: 3, how should I save my model?\n", "ZeRO-3: 如何保存模型\n"],
        ["With zero_stage: 2, how should I save my model?\n"],
    ),
    "adapter_of_zero3_not_loaded": (
        [
            "lora + zero3 训练后合并失败\n",
            "Zero3 LoRA merge error\n",
            "Traceback (most recent call last):\n"
            '  File "/site-packages/peft/peft_model.py", line 7, in load_adapter\n'
            "    weights = torch.load(\n",
        ],
        ["lora 训练后合并失败\n"],
    ),
    "as_if_not_trained": (
        ["推理结果和训练时完全不一样\n", "微调后生成乱码\n"],
        ["训练结果不一样\n"],
    ),
    "logits_without_vocabulary": (
        ["IndexError: argmax(): Expected reduction dim 1 to have non-zero size.\n"],
        ["IndexError: argmax(): Expected a tensor\n"],
    ),
    "universal_checkpoint_not_of_adam": (
        [
            '  File "ds_to_universal.py", line 133, in extract_zero_shards\n'
            '    exp_avg=state_groups[param_group_id]["exp_avg"],\n'
            "KeyError: 'exp_avg'\n",
        ],
        ["  File \"train.py\", line 3, in moments\nKeyError: 'exp_avg'\n"],
    ),
    "zero_to_fp32_of_bf16_optimizer": (
        ["ValueError: out/step/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt is not a zero checkpoint\n"],
        ["ValueError: out/step/zero_pp_rank_0_mp_rank_00_optim_states.pt is not a zero checkpoint\n"],
    ),
    "removed_config_key": (
        [
            "DeepSpeedConfigError: Nebula checkpointing has been removed. A leftover 'nebula' block would be ignored "
            "and checkpoints would silently fall back. See https://github.com/deepspeedai/DeepSpeed/issues/8489.\n",
            # without a link
            "deepspeed.runtime.config.DeepSpeedConfigError: Elastic training has been removed; the 'elasticity' "
            "configuration block is no longer supported.\n",
        ],
        ["DeprecationWarning: this function has been removed\n"],
    ),
    "nccl_not_in_torch": (
        ["RuntimeError: Distributed package doesn't have NCCL built in\n"],
        ["RuntimeError: Distributed package doesn't have MPI built in\n"],
    ),
    "hccl_error": (
        ["RuntimeError: HCCL function error: HcclCommInitRootInfo\n", "训练时 hccl 报错\n"],
        ["NCCL function error\n"],
    ),
    "gpus_without_p2p": (
        [
            "training with multiple 4090 gets stuck in deepspeed.initialize\n",
            "deepspeed hangs on 4 x 5090\n",
            "NotImplementedError: Using RTX 4000 series doesn't support faster communication via P2P or IB.\n",
            "两张4090训练卡住\n",
        ],
        ["training on one 4090 is slow\n", "multiple 4090 are fine\n", "8张4090训练报错\n"],
    ),
    "hangs_between_epochs": (
        ["training is frozen after the first epoch\n", "it hangs at the end of the epoch\n", "第一个epoch结束后卡住\n"],
        ["the loss falls after the first epoch\n"],
    ),
    "collective_timeout": (
        [
            "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
            "600004\n",
            "[E ProcessGroupNCCL.cpp:467] WorkNCCL(SeqNum=2, OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for "
            "1800001\n",
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation\n",
            "[BUG] NCCL timeout while saving\n",
        ],
        ["[rank0]: NCCL INFO Watchdog started\n"],
    ),
    "peer_gone": (
        ["RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19616.\n"],
        ["Connection closed by the user\n"],
    ),
    "hpz_group_rank": (
        [],
        ["ValueError: Group rank 2 is not part of group <ProcessGroup object at 0x7f2351ad8cb0>\n"],
    ),
    "gloo_ranks_not_connected": (
        [
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:150] "
            "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:20163\n"
        ],
        ["Gloo connectFullMesh done\n"],
    ),
    "launcher_child_failed": (
        [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "[2024-05-01 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'x'] exits with return code "
            "= 1\n",
        ],
        [
            "the job exits with return code 0\n",
            "['python', 'x'] exits with return code = -9\n",
            "ChildFailedError: \n  exitcode  : -11 (pid: 94)\n",
        ],
    ),
    # ZeRO-3: states and shapes
    "parameter_not_gathered": (
        [
            "assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()\n",
            "AssertionError: {'id': 918, 'status': 'INFLIGHT', 'numel': 0, 'ds_numel': 5120, 'shape': (0,)}\n",
            "AssertionError: {'id': 7, 'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 64, 'shape': (0,)}\n",
        ],
        [
            "assert param.ds_status == ZeroParamStatus.NOT_AVAILABLE\n",  # of code copied into many projects
            "RuntimeError: still have inflight params [{'id': 5, 'status': 'AVAILABLE', 'numel': 64}]\n",
        ],
    ),
    "skip_init_under_zero_init": (
        [
            traceback(
                "NotImplementedError: Cannot copy out of meta tensor; no data!",
                ("torch/nn/utils/init.py", "skip_init", "return module_cls(*args, **kwargs).to_empty(device=final)"),
                ("deepspeed/runtime/zero/partition_parameters.py", "wrapper", "self._post_init_method(module)"),
                ("deepspeed/runtime/zero/partition_parameters.py", "_post_init_method", "param.data.to(device)"),
            )
        ],
        [
            traceback(
                "NotImplementedError: Cannot copy out of meta tensor; no data!",
                ("deepspeed/runtime/zero/partition_parameters.py", "_post_init_method", "param.data.to(device)"),
            ),
            traceback(
                "NotImplementedError: Cannot copy out of meta tensor; no data!",
                ("torch/nn/utils/init.py", "skip_init", "return module_cls(*args, **kwargs).to_empty(device=final)"),
            ),
        ],
    ),
    "linear_of_one_dimension": (
        [
            "RuntimeError: Function LinearFunctionForZeroStage3Backward returned an invalid gradient at index 1 - got "
            "[] but expected shape compatible with [8, 8]\n"
        ],
        [
            "RuntimeError: Function LinearFunctionForZeroStage3Backward returned an invalid gradient at index 0 - got "
            "[4, 0] but expected shape compatible with [4, 8]\n"
        ],
    ),
    "autocast_of_another_engine": (
        [
            traceback(
                "KeyError: torch.bfloat16",
                (
                    "deepspeed/runtime/zero/stage3.py",
                    "reduce_independent_p_g_buckets_and_remove_grads",
                    "bucket = self.ipg_buckets[comm_dtype]",
                ),
            )
        ],
        [
            traceback(
                "KeyError: torch.bfloat16",
                ("train.py", "main", "bucket = buckets[torch.bfloat16]"),
            )
        ],
    ),
    "float64_gradients": (
        ["AssertionError: attempting to reduce an unsupported grad type: torch.float64\n"],
        ["AssertionError: attempting to reduce an unsupported grad type: torch.bfloat16\n"],
    ),
    "tensor_backward_reentrant": (
        [
            traceback(
                "AttributeError: 'NoneType' object has no attribute 'numel'",
                ("deepspeed/runtime/engine.py", "_backward_post_hook", "self._backward_epilogue()"),
                ("deepspeed/runtime/zero/stage3.py", "__reduce_and_partition_ipg_grads", "if param.grad.numel()"),
            ),
            traceback(
                "AttributeError: 'NoneType' object has no attribute 'view'",
                ("deepspeed/runtime/engine.py", "_backward_post_hook", "self._backward_epilogue()"),
                ("deepspeed/runtime/zero/stage_1_and_2.py", "copy_grads_in_partition", "grad_reduc.view(-1)"),
            ),
        ],
        [
            traceback(  # engine.backward
                "AttributeError: 'NoneType' object has no attribute 'view'",
                ("deepspeed/runtime/engine.py", "backward", "self._backward_epilogue()"),
                ("deepspeed/runtime/zero/stage_1_and_2.py", "copy_grads_in_partition", "grad_reduc.view(-1)"),
            ),
        ],
    ),
    "other_modules_than_recorded": (
        [
            "tracing error at step X, due to `NOT_AVAILABLE` parameters\n",
            "RuntimeError: tracing error at step 42:\n",
            "the next 1 parameters in the parameter fetch queue to be ({'id': 7, 'status': 'INFLIGHT'},)\n",
        ],
        ["an error while tracing step 42\n"],
    ),
    "ranks_diverge": (
        [
            "RuntimeError: disagreement between rank0 and rank6: rank0: [-4829, 4394]\n",
            traceback(
                "RuntimeError: Detected a disagreement on list length between rank0 and rank7: ",
                ("deepspeed/runtime/zero/utils.py", "assert_lst_len_same_as_other_ranks", "raise RuntimeError("),
            ),
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: X, but "
            "Rank 1\n",
        ],
        ["a disagreement between the reviewers\n"],
    ),
    "several_dtypes_gathered": (
        [
            "RuntimeError: expected there to be only one unique element in <generator object x>\n",
            "in defragment\n    assert len(set(t.dtype for t in tensors)) == 1\n",
        ],
        ["ValueError: expected one unique element\n"],
    ),
    "inference_tensor_in_training": (
        [
            "RuntimeError: Inference tensors cannot be saved for backward. To work around you can make a clone\n",
            "RuntimeError: Inplace update to inference tensor outside InferenceMode is not allowed.\n",
        ],
        ["Inference tensors: 12\n"],
    ),
    "weight_on_meta_device": (
        [
            "NotImplementedError: Cannot copy out of meta tensor; no data!\n",
            "init_inference() erroneously attempts to copy out of meta tensor\n",
            "RuntimeError: Tensor.item() cannot be called on meta tensors\n",
        ],
        ["the meta tensor has no data yet\n", "Some parameters are on the meta device because they were offloaded\n"],
    ),
    "size_mismatch_with_deepspeed": (
        ["size mismatch when I train a model with ZeRO-3\n", "RuntimeError: size mismatch (deepspeed zero3)\n"],
        ["RuntimeError: size mismatch when training with FSDP\n"],
    ),
    "empty_weight_in_operation": (
        [
            "ZeRO stage 3 error: output with shape [1] doesn't match the broadcast shape [8, 4]\n",
            "RuntimeError: The size of tensor a (4096) must match the size of tensor b (0) at non-singleton "
            "dimension 2\n",
            "The size of tensor a (0) must match the size of tensor b (8) at non-singleton dimension 1\n",
            "RuntimeError: Expected weight to be of same shape as normalized_shape, but got weight of shape [0] and "
            "normalized_shape = [1024]\n",
        ],
        ["RuntimeError: The size of tensor a (4096) must match the size of tensor b (2048)\n"],
    ),
    "placeholders_in_checkpoint": (
        [
            "size mismatch for fc1.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape in "
            "current model is torch.Size([64, 16]).\n",
            "size mismatch for fc1.weight: copying a param with shape torch.Size([1]) from checkpoint, the shape in "
            "current model is torch.Size([64, 16]).\n",
            "- fc1.weight: found shape torch.Size([0]) in the checkpoint and torch.Size([64, 16]) in the model\n",
            "The vocab size of the tokenizer 32001 does not match the vocab size of the LoRA weight 0!\n",
        ],
        [
            "The vocab size of the tokenizer 32001 does not match the vocab size of the LoRA weight 32000!\n",
            "size mismatch for scale: copying a param with shape torch.Size([1]) from checkpoint, the shape in "
            "current model is torch.Size([4]).\n",
        ],
    ),
    "loading_into_partitioned_model": (
        [
            "size mismatch for shared.weight: copying a param with shape torch.Size([250112, 512]) from "
            "checkpoint, the "
            "shape in current model is torch.Size([0]).\n"
        ],
        [
            "size mismatch for head.weight: copying a param with shape torch.Size([10, 512]) from checkpoint, the "
            "shape "
            "in current model is torch.Size([2, 512]).\n"
        ],
    ),
    "integers_require_gradients": (
        [
            "RuntimeError: only Tensors of floating point and complex dtype can require gradients\n",
            "`RuntimeError: Only Tensors of floating point and complex dtype can require gradients`\n",
        ],
        ["RuntimeError: a leaf Variable of floating point that can require gradients\n"],
    ),
    "weights_not_loaded_under_zero_init": (
        [
            "- lm_head.weight: found shape torch.Size([50257, 768]) in the checkpoint and torch.Size([0]) in the model "
            "instantiated\n",
        ],
        [
            "- classifier.weight: found shape torch.Size([2, 768]) in the checkpoint and torch.Size([5, 768]) in the "
            "model instantiated\n",
        ],
    ),
    "quantized_model": (
        [
            "ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models.\n",
        ],
        ["Tensors of floating point are quantized to 4-bit\n"],
    ),
    # the step and the backward pass
    "loss_without_graph": (
        ["RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n"],
        [
            "the embedding does not require grad\n",
            "RuntimeError: element 2 of tensors does not require grad and does not have a grad_fn\n",
        ],
    ),
    "pipeline_output_without_graph": (
        [
            "RuntimeError: element 2 of tensors does not require grad and does not have a grad_fn\n",
            "with pipeline_parallel_size=2: RuntimeError: element 0 of tensors does not require grad\n",
        ],
        [
            "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n",
            "PipelineModule: 2 of the tensors do not require grad\n",
        ],
    ),
    "released_while_in_use": (
        [
            "grpo: assert not param.ds_active_sub_modules, param.ds_summary()\n",
            "AssertionError: {'id': 5, 'status': 'AVAILABLE', 'numel': 64, 'ds_numel': 64, 'shape': (8, 8), "
            "'ds_shape': "
            "(8, 8), 'requires_grad': True, 'grad_shape': None, 'persist': False, 'active_sub_modules': {12}}\n",
        ],
        [
            "AssertionError: {'id': 5, 'status': 'AVAILABLE', 'numel': 64, 'ds_numel': 64, 'shape': (8, 8), "
            "'ds_shape': "
            "(8, 8), 'requires_grad': True, 'grad_shape': None, 'persist': False, 'active_sub_modules': set()}\n",
        ],
    ),
    "libuv_not_in_torch": (
        [
            "RuntimeError: use_libuv was requested but PyTorch was build without libuv support\n",
            "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support, "
            "run "
            "with USE_LIBUV=0 to disable it.\n",
        ],
        ["tcp://localhost:29500?use_libuv=0\n"],
    ),
    "process_group_initialized_twice": (
        ["ValueError: trying to initialize the default process group twice!\n"],
        ["ValueError: Default process group has not been initialized, please call init_process_group.\n"],
    ),
    "sparse_attn_unavailable": (
        [
            " [WARNING]  sparse_attn requires a torch version >= 1.5 and < 2.0 but detected 2.3\n",
            " [WARNING]  sparse_attn requires CUDA version 10.1+, does not currently support >=11 or <10.1\n",
            " [WARNING]  using untested triton version (2.1.0), only 1.0.0 is known to be compatible\n",
        ],
        ["sparse_attn ............ [NO] ....... [NO]\n"],
    ),
    "several_pipelines": (
        ["two PipelineModules in one model\n", "I use PipelineModule in the vision and the text models separately\n"],
        ["model = PipelineModule(layers, num_stages=2)\n"],
    ),
    "lightning_restores_optimizer_itself": (
        ["restore_training_state() gives DeepSpeed's optimizer a dictionary\n"],
        ["Restoring states from the checkpoint path: DeepSpeed\n"],
    ),
    "slot_not_on_host": (
        ["ValueError: No slot '6' specified on host 'worker-1'\n"],
        ["worker-1 slots=6\n"],
    ),
    "step_without_gradients": (
        [
            traceback(
                "KeyError: 0",
                (
                    "zero/stage_1_and_2.py",
                    "has_overflow_partitioned_grads_serial",
                    "for j, grad in enumerate(self.averaged_gradients[i]):",
                ),
            ),
            "for j, grad in enumerate(self.averaged_gradients[i]): KeyError: 0\n",
            "averaged_gradients is None after a few iterations\n",
        ],
        [
            traceback(
                "torch.AcceleratorError: something else",
                ("zero/stage_1_and_2.py", "f", "for j, grad in enumerate(self.averaged_gradients[i]):"),
            )
        ],
    ),
    "pipeline_loss_reported": (
        ["[BUG] PipelineEngine reports a wrong loss\n", "pipeline engine: the loss is wrong after the upgrade\n"],
        ["PipelineEngine: loss 0.7\n", "deepspeed==0.14.0\nstep 1 loss is zero\n"],
    ),
    "grad_accumulator_gone": (
        ["RuntimeError: !grad_accumulator_.expired() INTERNAL ASSERT FAILED. No grad accumulator for a saved leaf\n"],
        ["the accumulator of gradients has expired\n"],
    ),
    "engine_method_renamed": (
        ["AttributeError: 'DeepSpeedEngine' object has no attribute '_zero3_consolidated_fp16_state_dict'\n"],
        ["AttributeError: 'DeepSpeedEngine' object has no attribute 'generate'\n"],
    ),
    "cuda_only_operation": (
        [
            "ValueError: Expected a cuda device, but got: cpu\n",
            "ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)\n",
        ],
        ["a cuda device is expected\n"],
    ),
    "gradients_nan": (
        [
            "第二步之后损失为0\n",
            "loss=3 grad_norm=Nan\n",
            "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}\n",
            "{'loss': '0.0', 'grad_norm': 'nan', 'learning_rate': '1e-05'}\n",
            "grad_norm:nan loss:0\n",
            "NaN loss after the first step\n",
            "the loss goes to nan\n",
            "loss一直为0\n",
            "[BUG] grad_norm and loss is nan with the new release\n",
            "after two steps the loss will be nan\n",
        ],
        [
            "the loss will be nanoseconds late\n",
            "{'loss': 0.7, 'grad_norm': 1.2}\n",
            "the loss is nancy's\n",
            "banana loss is 2\n",
        ],
    ),
    "probabilities_not_valid": (
        ["Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"],
        ["the probability tensor\n"],
    ),
    "dtypes_mixed": (
        [
            "RuntimeError: Expected object of scalar type Half but got scalar type Float for argument #2\n",
            "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16\n",
            "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half\n",
            "RuntimeError: expected scalar type Half but found Float\n",
            "RuntimeError: Input type (float) and bias type (c10::BFloat16) should be the same\n",
        ],
        ["RuntimeError: expected scalar type Long but found Int\n"],
    ),
    "norm_of_gradients_not_positive": (
        ["deepspeed stops at assert all_groups_norm > 0\n", "deepspeed: assert all_grad_norm>0\n"],
        ["all_groups_norm = get_norm(groups)\n"],
    ),
    "accumulation_dtype_refused": (
        [
            "NotImplementedError: Model data type and gradient accumulation data type must be equal to use ZeRO\n",
            "NotImplementedError: Bfloat16 wrapper must use a gradient accumulation type of fp32, enable ZeRO\n",
            "NotImplementedError: unsupported mix of model dtype and gradient accumulation type\n",
        ],
        ["gradient accumulation data type\n"],
    ),
    "loss_scale_settings_refused": (
        ["ValueError: fp16.loss_scale must be a number, not bool\n"],
        ["fp16.loss_scale is a number\n"],
    ),
    "parameter_dtype_conflicts": (
        ["ValueError: data_types.param_dtype='fp16' conflicts with the enabled precision mode\n"],
        ["data_types.param_dtype='fp16'\n"],
    ),
    "autocast_with_quantized_weights": (
        ["ValueError: Cannot enable both torch autocast and zero quantized weights\n"],
        ["torch autocast and zero quantized weights\n"],
    ),
    "no_sync_twice": (
        ["AssertionError: no_sync context manager reentry is unsupported\n"],
        ["no_sync context manager\n"],
    ),
    "managed_accumulation_limits": (
        [
            "ValueError: managed_gradient_accumulation=False is not supported with pipeline parallelism\n",
            "RuntimeError: coalesce_grad_reduction requires ZeRO stage 1/2/3, got stage 0\n",
        ],
        ["coalesce_grad_reduction()\n"],
    ),
    "quantized_weight_shape": (
        [
            "AssertionError: Qantized weight requires the number of weights be a multiple of 8. Yet 9 cannot be\n",
            "AssertionError: 32001 / 2 is larger than 16k\n",
        ],
        ["32001 is larger than 16k\n"],
    ),
    "quantized_gradients_need_whole_nodes": (
        ["AssertionError: num_nodes<2 cannot initialize All-To-All\n"],
        ["cannot initialize All-To-All\n"],
    ),
    "gathered_parameter_moved": (
        ["RuntimeError: Parameter 7 is on cpu but broadcast requires it to be on cuda:0. When using\n"],
        ["Parameter 7 is on cpu\n"],
    ),
    "ulysses_batch_incomplete": (
        [
            "ValueError: Ulysses SP requires `position_ids` in every dataloader batch so that\n",
            'ValueError: Borked batch batch["input_ids"].shape=torch.Size([1, 8]) != \n',
        ],
        ["a batch of position_ids\n"],
    ),
    "ulysses_attention_refused": (
        ["ValueError: eager attn_implementation isn't currently supported by Ulysses sequence parallelism.\n"],
        ["attn_implementation=eager\n"],
    ),
    "sequence_parallel_size_refused": (
        [
            "RuntimeError: world_size (2) is less than sequence_parallel_size 4\n",
            "ValueError: sequence_parallel_size must be greater than 1, got 1\n",
        ],
        ["sequence_parallel_size 4\n"],
    ),
    "sequence_groups_missing": (
        ["AssertionError: sequence parallel group is not initialized\n"],
        ["the sequence parallel group\n"],
    ),
    "autosp_refuses": (
        ["RuntimeError: AutoSP requires PyTorch >= 2.9, found 2.6.\n"],
        ["AutoSP with PyTorch\n"],
    ),
    "mics_cannot_resume": (
        ["TypeError: MiCS_Optimizer.load_state_dict() got an unexpected keyword argument 'param_shapes'\n"],
        ["TypeError: load_state_dict() got an unexpected keyword argument 'shapes'\n"],
    ),
    "mics_group_size": (
        ["AssertionError: dp group size is not dividable by dp_shard_size,  (world_size 8, dp_shard_size 3)\n"],
        ["dp_shard_size 3\n"],
    ),
    "zenflow_settings": (
        ["AssertionError: Zenflow must be used with cpu offload\n"],
        ["Zenflow with cpu offload\n"],
    ),
    "zenflow_process_died": (
        ["RuntimeError: ZenFlow optimizer process exited during a step (likely an error or\n"],
        ["ZenFlow optimizer process 1234\n"],
    ),
    "superoffload_refuses": (
        ["RuntimeError: SuperOffload CPU optimizer timeout after 60.0 seconds. This indicates\n"],
        ["SuperOffload CPU optimizer took 60.0 seconds\n"],
    ),
    "one_cycle_division": (
        [
            traceback(
                "ZeroDivisionError: float division by zero",
                ("deepspeed/runtime/lr_schedules.py", "_get_scale_factor", "scale_factor = x / self.step_ratio"),
            ),
            "OneCycle: ZeroDivisionError: float division by zero\n",
            traceback(
                "ZeroDivisionError: float division by zero",
                ("deepspeed/runtime/lr_schedules.py", "_get_decay_lr", "x / self.decay_step_size"),
            ),
        ],
        [traceback("ZeroDivisionError: division by zero", ("train.py", "main", "return total / count"))],
    ),
    "division_by_zero": (
        ["ZeroDivisionError: float division by zero\n"],
        ["a division by zero was avoided\n"],
    ),
    "groups_of_scheduler": (
        ["ValueError: zip() argument 2 is longer than argument 1\n"],
        ["ValueError: zip() argument 2 is not iterable\n"],
    ),
    "recomputed_differently": (
        [
            "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
            "tensors "
            "have different metadata than during the forward pass.\n",
        ],
        ["Recomputed values for the following layers: 3\n"],
    ),
    "weights_not_contiguous": (
        ["ValueError: Tensors must be contiguous\n"],
        ["the tensors are not contiguous\n"],
    ),
    "backward_outside_engine": (
        [
            "RuntimeError: Direct calls to tensor.backward() are not supported in this configuration.\n",
            "RuntimeError: Loss scaling is required for this configuration, but backward() was called directly\n",
        ],
        ["Loss scaling is required for fp16\n"],
    ),
    # configs
    "config_key_unknown": (
        [
            "pydantic.error_wrappers.ValidationError: 1 validation error for DeepSpeedZeroConfig\nstages\n"
            "  extra fields not permitted (type=value_error.extra)\n",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedFP16Config\nscale\n"
            "  Extra inputs are not permitted [type=extra_forbidden, input_value=100, input_type=int]\n",
        ],
        ["1 validation error for AxolotlConfig\nscale\n  Extra inputs are not permitted\n"],
    ),
    "config_value_fractional": (
        [
            "ValidationError: 1 validation error for DeepSpeedZeroConfig\nstage3_prefetch_bucket_size\n"
            "  Input should be a valid integer, got a number with a fractional part [type=int_from_float]\n",
        ],
        [
            "ValidationError: 1 validation error for DeepSpeedZeroConfig\nstage\n  Input should be 0, 1, 2 or 3\n",
            "max_tokens\n  Input should be a valid integer, got a number with a fractional part "
            "[type=int_from_float]\n",
        ],
    ),
    "config_invalid": (
        [
            "2 validation errors for DeepSpeedInferenceConfig\ninjection_policy_tuple\n  value is not a valid tuple\n",
            "[BUG] 1 validation error for DeepSpeedZeroOffloadOptimizerConfig\n",
        ],
        ["1 validation error for ModelConfig\n"],  # vLLM's
    ),
    "config_differs_from_arguments": (
        [
            "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
            "- ds train_batch_size=32 vs hf train_batch_size (calculated)=4\n",
            "Please correct the following DeepSpeed config values that mismatch kwargs  values:\n",
        ],
        ["DeepSpeed config values that are used\n"],
    ),
    "accelerate_config_and_file": (
        [
            "ValueError: When using `deepspeed_config_file`, the following accelerate config variables will be "
            "ignored: "
            "['gradient_accumulation_steps'].\n",
        ],
        ["the following accelerate config variables will be used\n"],
    ),
    "dummy_optimizer": (
        [
            "ValueError: You cannot create a `DummyScheduler` without specifying a scheduler in the config file.\n",
            "ValueError: Either specify a scheduler in the config file or pass in the `lr_scheduler_callable` "
            "parameter\n",
        ],
        ["using DummyOptim and DummyScheduler\n"],
    ),
    "placeholder_instead_of_engine": (
        [
            "AttributeError: 'DummyOptim' object has no attribute 'step'\n",
            "AttributeError: 'DummyScheduler' object has no attribute 'get_last_lr'\n",
        ],
        ["AttributeError: 'DummyDataset' object has no attribute 'step'\n"],
    ),
    "optimizer_without_scheduler": (
        ["ValueError: Found `optimizer` configured in the DeepSpeed config, but no `scheduler`. Please configure\n"],
        ["Found `optimizer` configured in the DeepSpeed config\n"],
    ),
    "offload_client_optimizer": (
        [
            "ZeRORuntimeException: You are using ZeRO-Offload with a client provided optimizer (<class 'AdamW'>)\n",
            "Please either use deepspeed.ops.adam.DeepSpeedCPUAdam or set an optimizer in your ds-config\n",
        ],
        ["Using client Optimizer as basic optimizer\n", '"zero_force_ds_cpu_optimizer": false,\n'],
    ),
    "batch_sizes_contradict": (
        [
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size 8 != 2 * 1 * 1\n",
        ],
        ["train_batch_size: 8\n"],
    ),
    "batch_size_missing": (
        [
            "AssertionError: Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided\n",
            "ValueError: When using DeepSpeed, `accelerate.prepare()` requires you to pass at least one of training or "
            "evaluation dataloaders with `batch_size` attribute\n",
        ],
        ["train_micro_batch_size_per_gpu needs more memory\n"],
    ),
    "scheduler_unknown": (
        ["AssertionError: DeepSpeed does not recognize LR scheduler cosine\n"],
        ["DeepSpeed using configured LR scheduler = WarmupLR\n"],
    ),
    "untested_optimizer": (
        ["AssertionError: You are using an untested ZeRO Optimizer. Please add <x> in the configuration file\n"],
        ["**** You are using ZeRO with an untested optimizer, proceed with caution *****\n"],
    ),
    "fp16_and_bf16": (
        ["AssertionError: bfloat16 and fp16 modes cannot be simultaneously enabled\n"],
        ["bfloat16 and fp16 are both off\n"],
    ),
    "config_not_found": (
        [
            "ValueError: Expected a string path to an existing deepspeed config, or a dictionary or a valid base64.\n",
            traceback("", ("accelerate/utils/deepspeed.py", "__init__", "config = json.loads(config_file_or_dict)")),
        ],
        ["a string path to an existing deepspeed config\n"],
    ),
    "config_lacks_key": (
        ["KeyError: 'train_micro_batch_size_per_gpu'\n", "KeyError: 'zero_optimization'\n"],
        ["KeyError: 'optimizer'\n"],
    ),
    "deepspeed_option_of_parser": (
        [
            "train.py: error: argument --deepspeed: expected one argument\n",
            "argparse.ArgumentError: argument --deepspeed: conflicting option string: --deepspeed\n",
        ],
        ["train.py: error: argument --lr: expected one argument\n"],
    ),
    "script_arguments_missing": (
        ["train.py: error: the following arguments are required: --output_dir\n"],
        ["the following packages are required: torch\n"],
    ),
    "where_auto_works": (
        ['Which keys of the config can be "auto"?\n'],
        ['"lr": "auto"\n', "it can be automatic\n"],
    ),
    # names and versions
    "pip_conflict": (
        [
            "torch 2.3.0 requires triton==2.3.0, but you have triton 3.1.0 which is incompatible.\n",
            "ERROR: ResolutionImpossible: for help visit\n",
        ],
        ["this combination is incompatible\n"],
    ),
    "versions_that_fit": (
        [
            "DeepSpeed is not compatible with PyTorch 2.9\n",
            "Which version of deepspeed do you use?\n",
            "deepspeed版本不兼容\n",
        ],
        ["this sequence is not compatible with the other\n", "a newer version of deepspeed\n"],
    ),
    "torch_six": (
        ["ModuleNotFoundError: No module named 'torch._six'\n"],
        ["ModuleNotFoundError: No module named 'torch._dynamo'\n"],
    ),
    "accelerate_without_engine": (
        [
            "AttributeError: 'Accelerator' object has no attribute 'deepspeed_engine_wrapped'\n",
            "AttributeError: 'Accelerator' object has no attribute 'deepspeed_config'. Did you mean: "
            "'deepspeed_plugin'?\n",
            traceback(
                "AttributeError: 'NoneType' object has no attribute 'backward'",
                ("accelerate/accelerator.py", "backward", "self.deepspeed_engine_wrapped.backward(loss, **kwargs)"),
            ),
        ],
        ["AttributeError: 'NoneType' object has no attribute 'backward'\n"],
    ),
    "optimizer_has_no_train": (
        [
            "AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'train'\n",
            "AttributeError: 'AdamW' object has no attribute 'train'\n",
        ],
        ["AttributeError: 'Model' object has no attribute 'train'\n"],
    ),
    "accelerator_argument": (
        [
            "TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'\n",
            "TypeError: __init__() got an unexpected keyword argument 'use_seedable_sampler'\n",
        ],
        ["TypeError: f() got an unexpected keyword argument 'x'\n"],
    ),
    "unexpected_keyword": (
        ["TypeError: Lion.__init__() got an unexpected keyword argument 'eps'\n"],
        ["TypeError: Lion.__init__() missing 1 required positional argument: 'params'\n"],
    ),
    "optimizer_keys_missing": (["KeyError: 'bias_correction'\n"], ["KeyError: 'betas'\n"]),
    "number_is_a_string": (
        ["TypeError: '<=' not supported between instances of 'float' and 'str'\n"],
        ["TypeError: '<' not supported between instances of 'dict' and 'dict'\n"],
    ),
    "deepspeed_not_installed": (
        [
            "ModuleNotFoundError: No module named 'deepspeed'\n",
            "ImportError: DeepSpeed is not installed => run `pip3 install deepspeed` or build it from source.\n",
            "node2: /usr/bin/python3: No module named deepspeed.launcher\n",
            "运行时提示缺少deepspeed\n",
        ],
        ["ModuleNotFoundError: No module named 'deepspeed_config'\n"],
    ),
    "backward_counts_parameters": (
        ["AttributeError: 'NoneType' object has no attribute 'next_functions'\n"],
        ["AttributeError: 'Tensor' object has no attribute 'next_functions'\n"],
    ),
    "triton_drivers": (
        ["RuntimeError: 2 active drivers ([<class 'a'>, <class 'b'>]). There should only be one.\n"],
        ["2 active drivers found\n"],
    ),
    "engine_is_not_the_model": (
        [
            "AttributeError: 'DeepSpeedLight' object has no attribute 'generate'\n",
            "AttributeError: 'DeepSpeedEngine' object has no attribute 'no_sync'\n",
        ],
        ["AttributeError: 'Engine' object has no attribute 'no_sync'\n"],
    ),
    "model_is_not_the_engine": (
        ["AttributeError: 'Qwen2ForCausalLM' object has no attribute 'optimizer'\n"],
        [
            "AttributeError: 'NoneType' object has no attribute 'optimizer'\n",
            "AttributeError: 'Namespace' object has no attribute 'optimizer'\n",
        ],
    ),
    "engine_config_is_a_dict": (
        ["AttributeError: 'dict' object has no attribute 'is_encoder_decoder'\n"],
        ["AttributeError: 'dict' object has no attribute 'append'\n"],
    ),
    "trainer_of_another_release": (
        ["AttributeError: 'OurTrainer' object has no attribute 'deepspeed'\n"],
        [
            "AttributeError: 'TrainerState' object has no attribute 'deepspeed'\n",
            "AttributeError: 'Trainer' object has no attribute 'optimizer'\n",
        ],
    ),
    "deepspeed_of_another_release": (
        [
            "AttributeError: 'DeepSpeedZeRoOffload' object has no attribute 'get_param_coordinator2'\n",
            "ImportError: cannot import name 'logger' from 'deepspeed.utils.names' (/a/names.py)\n",
            "ModuleNotFoundError: No module named 'deepspeed.elasticity'\n",
            "AttributeError: module 'deepspeed' has no attribute 'OnDevice'\n",
        ],
        [
            "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n",
            "ImportError: cannot import name 'log' from 'deep'\n",
        ],
    ),
    "deepspeed_argument": (
        [
            "TypeError: DeepSpeedEngine.save_checkpoint() got an unexpected keyword argument 'dtype'\n",
            "TypeError: init_inference() got an unexpected keyword argument 'tp'\n",
        ],
        ["TypeError: load_checkpoint() got an unexpected keyword argument 'dtype'\n"],
    ),
    "transformers_deepspeed_moved": (
        [
            "ModuleNotFoundError: No module named 'transformers.deepspeed'\n",
            "imports from transformers.deepspeed are used; transformers.deepspeed is deprecated\n",
        ],
        ["ModuleNotFoundError: No module named 'transformers'\n"],
    ),
    "torch_of_another_release": (
        [
            traceback(
                "AttributeError: module 'torch.compiler' has no attribute 'is_exporting'",
                ("deepspeed/runtime/compiler.py", "<module>", "return torch.compiler.is_exporting()"),
            ),
        ],
        [
            traceback(
                "AttributeError: module 'torch.compiler' has no attribute 'is_exporting'",
                ("peft/tuners/lora.py", "<module>", "return torch.compiler.is_exporting()"),
            ),
        ],
    ),
    # building
    "curand_not_linked": (
        [
            "ImportError: deepspeed/ops/adam/cpu_adam_op.cpython-38.so: undefined symbol: curandCreateGenerator\n",
            "[BUG] undefined symbol `curandSetStream` of cpu_adam\n",
        ],
        ["curandCreateGenerator was called\n", "undefined symbol cublasCreate\n"],
    ),
    "undefined_symbol": (
        [
            "ImportError: /a/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: "
            "_ZN3c104cuda9SetDevice\n",
            "[BUG] undefined symbol: _ZNK2at6Tensor3foo\n",
        ],
        ["symbol table: undefined\n", "undefined symbol: _ZN5other3foo\n"],
    ),
    "extension_not_built": (
        [
            "ImportError: /root/.cache/torch_extensions/py310_cu121/cpu_adam/cpu_adam.so: cannot open shared "
            "object file\n",
            "ImportError: /scratch/ops/fused_adam/fused_adam.so: cannot open shared object file: No such file\n",
        ],
        ["ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory\n"],
    ),
    "cuda_toolkit_of_another_version": (
        [
            "Installed CUDA version 11.7 does not match torch version\n",
            "Exception: >- DeepSpeed Op Builder: Installed CUDA version 12.0 does not match the version torch was "
            "compiled "
            "with 11.7, unable to compile cuda/cpp extensions without a matching cuda version.\n",
            "RuntimeError: The detected CUDA version (11.5) mismatches the version that was used to compile "
            "PyTorch (12.1)\n",
        ],
        [
            "Installed CUDA version 12.4 does not match the version torch was compiled with 12.1 but since the "
            "APIs are "
            "compatible, accepting this combination\n",
        ],
    ),
    "header_missing": (
        [
            "custom_cuda_layers.h:12:10: fatal error: curand_kernel.h: No such file or directory\n",
            "ccl.cpp:8:10: fatal error: oneapi/ccl.hpp: No such file or directory\n",
        ],
        ["fatal: not a git repository\n"],
    ),
    "compiler_missing": (
        [
            "subprocess.CalledProcessError: Command '['which', 'c++']' returned non-zero exit status 1.\n",
            "RuntimeError: Ninja is required to load C++ extensions\n",
            "RuntimeError: Unable to JIT load the cpu_adam op due to ninja not being installed.\n",
            "nvcc fatal   : No supported gcc/g++ host compiler found\n",
        ],
        ["ninja .................. [OKAY]\n"],
    ),
    "compiler_and_torch": (
        [
            "nvcc fatal unsupported gpu architecture 'compute_86'\n",
            '#error "You\'re trying to build PyTorch with a too old version of GCC. We need GCC 9 or later."\n',
            "#error You need C++14 to compile PyTorch\n",
            "#error -- unsupported GNU version! gcc versions later than 10 are not supported!\n",
            "nvcc fatal   : Unsupported gpu architecture 'compute_90'\n",
            "#error Unsupported NVHPC compiler found!\n",
        ],
        ["a newer GNU version\n"],
    ),
    "async_io_on_windows": (
        ["AssertionError: Unable to pre-compile async_io\n"],
        ["async_io ............... [NO] ....... [NO]\n"],
    ),
    "operator_not_compatible": (
        [
            "AssertionError: Unable to pre-compile evoformer_attn\n",
            'setup.py", line 7, in <module>\n    abort(f"Unable to pre-compile {op_name}")\n',
        ],
        ["evoformer_attn ......... [NO] ....... [NO]\n"],
    ),
    "cuda_not_visible": (
        [
            "No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'\n",
            "AssertionError: Torch not compiled with CUDA enabled\n",
        ],
        ["torch cuda version ............... 12.1\n"],
    ),
    "libaio_warning": (
        [" [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n"],
        ["async_io ............... [YES] ...... [OKAY]\n"],
    ),
    # launching
    "no_ssh_to_host": (
        [
            "pdsh@head: worker-1: ssh exited with exit code 255\n",
            "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no a hostname' returned "
            "non-zero exit "
            "status 255.\n",
        ],
        ["pdsh@head: worker-1: ssh exited with exit code 1\n"],
    ),
    "pdsh_ssh_port": (
        ["KeyError: 'PDSH_SSH_ARGS_APPEND'\n"],
        ["export PDSH_SSH_ARGS_APPEND='-p 2222'\n"],
    ),
    "mpi_asked_without_launcher": (
        [
            "[INFO] Not using the DeepSpeed or dist launchers, attempting to detect MPI environment...\n"
            "[node1:12] pmix_mca_base_component_repository_open: unable to open mca_gds\n",
            "*** An error occurred in MPI_Init_thread\n",
        ],
        ["attempting to detect MPI environment...\nDiscovered MPI settings of world_rank=0, local_rank=0\n"],
    ),
    "nodes_in_containers": (
        [
            "multi-node training with DeepSpeed in docker\n",
            "containers on two machines, how do I start deepspeed\n",
            "deepspeed jobs on Kubernetes\n",
            "多机多卡训练 在容器里启动\n",
        ],
        ["training in docker with one GPU\n", "multi-node training with DeepSpeed\n", "a container of four tensors\n"],
    ),
    "accelerate_multinode_launcher": (
        [
            "deepspeed_config:\n  zero_stage: 2\ndistributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n",
            "  deepspeed_multinode_launcher: pdsh\n",
        ],
        [
            "deepspeed_config:\n  zero_stage: 2\ndistributed_type: DEEPSPEED\nnum_machines: 1\n",
            "deepspeed_config:\n  deepspeed_multinode_launcher: standard\nnum_machines: 2\n",
        ],
    ),
    "yaml_after_local_rank": (
        [
            "train.py: error: the following arguments are required: --output_dir\nlaunch.py: process 7 spawned with "
            "command: ['python', '-u', 'train.py', '--local_rank=0', 'lora.yaml']\n",
            "command: ['python', '-u', 'train.py', '--local_rank=0', 'lora.yaml']\ntrain.py: error: the following "
            "arguments are required: --output_dir\n",
        ],
        [
            "train.py: error: the following arguments are required: --output_dir\n",
            "command: ['python', '-u', 'train.py', '--local_rank=0', 'lora.yaml']\n",
        ],
    ),
    "connection_reset_at_start": (
        [
            "retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0'), but it got error: "
            "Broken pipe\n",
        ],
        ["wandb: Connection reset by peer\n"],
    ),
    "command_not_executable": (
        [
            "bash: /home/a/env/bin/deepspeed: Permission denied\n",
            "run.sh: line 3: deepspeed: Permission denied\n",
            'Permission denied whenever the "deepspeed" command is used\n',
        ],
        [
            "deepspeed command: Permission denied (publickey).\n",
            "deepspeed run: PermissionError: [Errno 13] Permission denied: '/.triton'\n",
        ],
    ),
    "mpi_differs_from_torch": (
        [
            "AssertionError: MPI rank 3 does not match torch rank 0\n",
            "AssertionError: MPI world size 4 does not match torch world size 1\n",
        ],
        ["the world size of MPI does not match\n"],
    ),
    "under_slurm": (
        [
            "multi-node job under Slurm does not start\n",
            "how to use DeepSpeed with SLURM\n",
            "slurm集群上怎么训练\n",
        ],
        ["slurmstepd: error\n", "DeepSpeed with two GPUs\n"],
    ),
    "launcher_unknown": (
        ["NotImplementedError: Unknown launcher ray\n", "ValueError: MPICH requires same number of devices per node\n"],
        ["NotImplementedError: Unknown scheduler ray\n"],
    ),
    "pdsh_args_replaced": (
        ["my PDSH_SSH_ARGS_APPEND is overwritten by the launcher\n"],
        ["export PDSH_SSH_ARGS_APPEND='-p 22'\n"],
    ),
    "name_of_host_unknown": (
        ["socket.gaierror: [Errno -2] Name or service not known\n"],
        ["socket.timeout: timed out\n"],
    ),
    "port_is_a_string": (
        [
            traceback(
                "TypeError: 'str' object cannot be interpreted as an integer",
                ("accelerate/utils/other.py", "is_port_in_use", 'return s.connect_ex(("localhost", port)) == 0'),
            ),
        ],
        [traceback("TypeError: 'str' object cannot be interpreted as an integer", ("train.py", "f", "range(n)"))],
    ),
    "launcher_backend_missing": (
        ["RuntimeError: launcher 'pdsh' not installed.\n"],
        ["launcher pdsh is used\n"],
    ),
    "port_in_use": (
        [
            "RuntimeError: The server socket has failed to listen on any local network address. The server socket has "
            "failed to bind to [::]:29500 (errno: 98 - Address already in use).\n",
            "torch.distributed.DistNetworkError: port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE\n",
        ],
        ["the server socket listens on port 29500\n"],
    ),
    "rank_variables_missing": (
        [
            "ModuleNotFoundError: No module named 'mpi4py'\n",
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, "
            "but not set\n",
            "KeyError: 'LOCAL_RANK'\n",
        ],
        ["KeyError: 'RANK_ZERO'\n"],
    ),
    "without_launcher": (
        ["running DeepSpeed without a launcher\n", "DeepSpeed in a notebook\n", "it does not start without mpi4py\n"],
        ["DeepSpeed in a container\n", "without a scheduler\n"],
    ),
    "one_visible_gpu_per_rank": (
        ["it fails with srun --gpus-per-task=1, where only one GPU is seen\n", "each rank has only one visible GPU\n"],
        ["srun --gpus-per-node=8 torchrun train.py\n", "srun --gpus-per-task=1 python train.py\n"],
    ),
    "local_rank_is_minus_one": (
        ["RuntimeError: Device index must not be negative\n"],
        ["IndexError: index must not be negative\n"],
    ),
    "local_rank_argument": (
        ["train.py: error: unrecognized arguments: --local_rank=0\n"],
        ["train.py: error: unrecognized arguments: --epochs 3\n"],
    ),
    "not_initialized_distributed": (
        [
            "AssertionError: DeepSpeed backend not set, please initialize it using init_process_group()\n",
            "ValueError: Default process group has not been initialized, please make sure to call "
            "init_process_group.\n",
        ],
        ["the process group has been initialized\n"],
    ),
    "nccl_failed": (
        [
            "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled "
            "system error\n",
            "torch.distributed.DistBackendError: ncclInternalError: Internal check failed.\n",
            "training ends with a nccl error\n",
        ],
        ["NCCL version 2.21.5+cuda12.4\n"],
    ),
    # memory and the GPU
    "gpu_out_of_memory": (
        [
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
            "CUDA out of memory with ZeRO-3\n",
        ],
        ["the memory of the GPU is out of date\n"],
    ),
    "rank_killed": (
        [
            "then it shows me a SIGKILL\n",
            "-9: Signal 9 (SIGKILL) received by PID 94\n",
            "[ERROR] [launch.py:321:sigkill_handler] ['python', 'x'] exits with return code = -9\n",
            "the job exits with return code -9\n",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n===\ntrain.py FAILED\n"
            "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 94)\n",
            "subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.SIGKILL: 9>.\n",
        ],
        [
            "Signal 2 (SIGINT) received by PID 94\n",
            "exits with return code = 9\n",
            "return code -99\n",
            "exitcode  : -99\n",
        ],
    ),
    "rank_bus_error": (
        [
            "训练结束后报错 356 Bus error\n",
            "traceback : Signal 7 (SIGBUS) received by PID 94\n",
            "[launch.py:321:sigkill_handler] ['python', 'x'] exits with return code = -7\n",
            "it crashes with return code=-7\n",
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that x\n",
        ],
        ["exits with return code = 7\n", "a bus error\n", "exits with return code = -9\n"],
    ),
    "rank_crashed": (
        [
            "a segmentation fault in CPUAdam\n",
            "it segfaults when cpu_adam is loaded\n",
            "[launch.py:321:sigkill_handler] ['python', 'x'] exits with return code = -11\n",
            "exitcode  : -11 (pid: 94)\n",
            "Segmentation fault (core dumped)\n",
        ],
        ["exits with return code = 11\n", "exits with return code = -9\n"],
    ),
    "rank_aborted": (
        ["-6: Signal 6 (SIGABRT) received by PID 94\n", "exits with return code = -6\n"],
        ["exits with return code = 6\n"],
    ),
    "nvme_file_size": (
        [
            "/nvme/rank3/1_param.tensor.swp: buffer nbytes != file bytes 16777216 != 8388608\n",
            "Assertion `static_cast<long long int>(buffer.nbytes()) == num_file_bytes' failed.\n",
        ],
        ["1_param.tensor.swp: 8388608 bytes\n"],
    ),
    "nvme_buffers": (
        [
            "AssertionError: More elements 524709888 than buffer size 100,000,000\n",
            "AssertionError: Not enough buffers 0 for swapping 1\n",
            "AssertionError: No buffer available to swap param 4.\n",
        ],
        ["enough buffers for swapping\n"],
    ),
    "index_out_of_range_on_gpu": (
        ["Indexing.cu:1141: block: [61,0,0], thread: [5,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"],
        ["TORCH_USE_CUDA_DSA to enable device-side assertions.\n", "CUDA error: device-side assert triggered\n"],
    ),
    "assertion_on_gpu": (
        [
            "RuntimeError: CUDA error: device-side assert triggered\n",
        ],
        ["TORCH_USE_CUDA_DSA to enable device-side assertions.\n"],
    ),
    "illegal_memory_access": (
        ["RuntimeError: CUDA error: an illegal memory access was encountered\n"],
        ["illegal access\n"],
    ),
    "no_kernel_for_gpu": (
        ["RuntimeError: CUDA error: no kernel image is available for execution on the device\n"],
        ["no kernel is available\n"],
    ),
    "more_ranks_than_gpus": (
        ["RuntimeError: CUDA error: invalid device ordinal\n"],
        ["invalid device\n"],
    ),
    # inference, parallelism, universal checkpoints
    "autotp_does_not_know_the_model": (
        ["AssertionError: Not able to determine model policy automatically. Please provide policy.\n"],
        ["model policy determined automatically\n"],
    ),
    "kernels_do_not_fit_the_model": (
        ["AssertionError: Merging tensors is not allowed here! Please use deepspeed load_checkpoint\n"],
        ["Merging tensors of two files\n"],
    ),
    "shapes_do_not_multiply": (
        ["RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x768 and 384x768)\n"],
        ["RuntimeError: mat1 must be a matrix\n"],
    ),
    "inference_checkpoint_description": (["KeyError: 'parallelization'\n"], ["KeyError: 'parallel'\n"]),
    "not_divisible_by_ranks": (
        [
            "ValueError: Attention head count 14 is not divisible by SP size 4\n",
            "AssertionError: sequence length 1001 is not divisible by Sequence Parallel size 4\n",
            "the seq_len must be divisible by the sequence_parallel world size\n",
            "AssertionError: Number of experts (3) should be divisible by expert parallel size (2)\n",
        ],
        ["ValueError: 14 is not divisible by 4\n", "the sequence length must be divisible by 8\n"],
    ),
    "universal_checkpoint_incomplete": (["KeyError: 'param_shapes'\n"], ["KeyError: 'param_groups'\n"]),
    # what else can be missing, full or damaged
    "zero_attributes_missing": (
        ["AttributeError: 'Parameter' object has no attribute 'ds_status'\n"],
        ["AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"],
    ),
    "weights_not_gathered_on_save": (
        ["ValueError: Cannot get 16bit model weights because `stage3_gather_16bit_weights_on_model_save` in it\n"],
        ['"stage3_gather_16bit_weights_on_model_save": true\n'],
    ),
    "host_out_of_memory": (
        ["RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory\n"],
        ["the allocator of the CPU\n"],
    ),
    "bad_alloc": (
        ["terminate called after throwing an instance of 'std::bad_alloc'\n"],
        ["terminate called after throwing an instance of 'c10::Error'\n"],
    ),
    "out_of_memory": (
        [
            "dpo train with deepspeed oom\n",
            "CUDA Out of Memory\n",
            "训练时显存不足\n",
            "[BUG] load_checkpoint runs out of memory\n",
        ],
        ["the memory is full of ideas\n"],
    ),
    "disk_full": (["OSError: [Errno 28] No space left on device\n"], ["space left on device: 7 GB\n"]),
    "cublas_failed": (
        ["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"],
        ["CUBLAS_STATUS_SUCCESS\n"],
    ),
    "cuda_in_forked_process": (
        ["RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn\n"],
        ["RuntimeError: DataLoader worker exited unexpectedly in forked subprocess\n"],
    ),
    "index_out_of_range": (
        ["IndexError: index out of range in self\n"],
        ["IndexError: list index out of range\n"],
    ),
    "nothing_to_train": (
        ["ValueError: optimizer got an empty parameter list\n", "ValueError: max() arg is an empty sequence\n"],
        ["ValueError: min() arg is an empty sequence\n"],
    ),
    "zero_without_optimizer": (
        ["AssertionError: zero stage 2 requires an optimizer\n"],
        ["zero stage 2 uses an optimizer\n"],
    ),
    "graph_used_twice": (
        ["RuntimeError: Trying to backward through the graph a second time\n"],
        ["the backward pass runs a second time\n"],
    ),
    "modified_inplace": (
        [
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation\n",
        ],
        ["an inplace operation\n"],
    ),
    "marked_ready_twice": (
        ["RuntimeError: Expected to mark a variable ready only once.\n"],
        ["a variable is ready\n"],
    ),
    "moe_groups": (
        ["AssertionError: The model has moe layers, but None of the param groups are marked as MoE.\n"],
        ["param groups of the MoE layers: 3\n"],
    ),
    "pipeline_limits": (
        ["deepspeed.runtime.pipe.engine.PipelineError: Only train_batch() is accessible in pipeline mode.\n"],
        ["train_batch() in pipeline mode\n"],
    ),
    "precision_not_supported": (
        [
            "ValueError: Your setup doesn't support bf16/gpu.\n",
            "ValueError: Type fp16 is not supported on your device.\n",
        ],
        ["bf16 is enabled\n", "RuntimeError: FlashAttention only support fp16 and bf16 data type\n"],
    ),
    "flash_attention_refuses": (
        [
            "RuntimeError: FlashAttention only support fp16 and bf16 data type\n",
            "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n",
        ],
        ["FlashAttention is on\n"],
    ),
    "rendezvous_failed": (
        [
            "[E socket.cpp:922] [c10d] The client socket has timed out after 60s while trying to connect to (a, 1).\n",
            "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0\n",
        ],
        [
            "the client socket is connected\n",
            "[W socket.cpp:601] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot).\n",
        ],
    ),
    "socket_of_ipv6": (
        [
            "[W socket.cpp:601] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot).\n",
            "The client socket cannot be initialized to connect to [a]:1 (errno: 97 - Address family not supported).\n",
        ],
        ["The client socket has failed to connect to [a]:1 (errno: 111 - Connection refused).\n"],
    ),
    "several_models": (
        ["AssertionError: You can't use same `Accelerator()` instance with multiple models when using DeepSpeed\n"],
        ["an `Accelerator()` with one model\n"],
    ),
    "no_checkpoint_to_resume": (
        [
            "ValueError: Can't find a valid checkpoint at out/checkpoint-5\n",
            "ValueError: No valid checkpoint found in output directory (out)\n",
            "ValueError: [deepspeed] failed to resume from checkpoint out/checkpoint-5\n",
        ],
        [
            "resuming from a valid checkpoint at out/checkpoint-5\n",
            "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory out.\n",
        ],
    ),
    "partitions_instead_of_model": (
        ["OSError: Error no file named pytorch_model.bin, x found in directory out/checkpoint-5/global_step5.\n"],
        ["OSError: Error no file named pytorch_model.bin, x found in directory out/checkpoint-5.\n"],
    ),
    "not_a_model_directory": (
        ["OSError: Error no file named pytorch_model.bin, model.safetensors found in directory out.\n"],
        ["no file named config.json\n", "ValueError: Can't find a valid checkpoint at out/checkpoint-5\n"],
    ),
    "file_damaged": (
        [
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge\n",
            "WeightsUnpickler error: Unsupported operand 118\n",
        ],
        ["the header was deserialized\n", "WeightsUnpickler error: Unsupported operand 149\n"],
    ),
    "weights_not_loaded_by_transformers": (
        ["OSError: Unable to load weights from pytorch checkpoint file for 'pytorch_model.bin' at '/data'.\n"],
        ["unable to load the weights\n"],
    ),
    "optimizer_groups_differ": (
        [
            "ValueError: loaded state dict has a different number of parameter groups\n",
            "I got \"KeyError('param_groups')\"\n",
        ],
        ["KeyError: 'groups'\n"],
    ),
    "state_dict_does_not_fit": (
        ["RuntimeError: Error(s) in loading state_dict for Model:\n\tMissing key(s) in state_dict: 'a.weight'.\n"],
        ["loading state_dict for Model\n"],
    ),
    # families
    "module_not_installed": (
        ["ModuleNotFoundError: No module named 'flash_attn'\n"],
        ["a module named flash_attn\n"],
    ),
    "name_not_in_package": (
        [
            "ImportError: cannot import name 'x' from 'package' (/a/package.py)\n",
            "AttributeError: module 'package' has no attribute 'x'\n",
        ],
        ["AttributeError: 'Package' object has no attribute 'x'\n"],
    ),
    "shared_library_missing": (
        [
            "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory\n",
            "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by a.so)\n",
        ],
        ["libcudart.so.11.0 was opened\n", "NCCL INFO dlerror=libnccl-net.so: cannot open shared object file\n"],
    ),
    "argument_missing": (
        ["TypeError: WarmupDecayLR.__init__() missing 1 required positional argument: 'total_num_steps'\n"],
        ["1 required positional argument\n"],
    ),
    "no_permission": (
        ["PermissionError: [Errno 13] Permission denied: '/.triton'\n"],
        ["the permission was denied by the user\n"],
    ),
    "json_invalid": (
        ["json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"],
        ["the JSON is valid\n"],
    ),
    "devices_differ": (
        ["RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:x and y\n"],
        ["all tensors are on the same device\n"],
    ),
    "file_not_found": (
        ["FileNotFoundError: [Errno 2] No such file or directory: 'ds_config.json'\n"],
        ["no such file\n"],
    ),
    "too_many_resources": (
        ["RuntimeError: CUDA error: too many resources requested for launch\n"],
        ["too many resources were requested\n"],
    ),
    "cuda_error": (["RuntimeError: CUDA error: invalid argument\n"], ["RuntimeError: CUDA is not available\n"]),
    "assertion_of_swapping": (
        ["AssertionError: param 7 already assigned swap buffer id 3\n"],
        ["a swap buffer is assigned to param 7\n"],
    ),
    "release_for_newer_torch": (
        ["AttributeError: module 'torch.compiler' has no attribute 'is_compiling'\n"],
        ["AttributeError: module 'torch.compiler' has no attribute 'is_exporting'\n"],
    ),
    # DeepSpeed's own checks
    "config_given_twice": (
        ["AssertionError: Not sure how to proceed, we were given deepspeed configs in the deepspeed arguments and x\n"],
        ["not sure how to proceed\n"],
    ),
    "config_numbers": (
        [
            "ValueError: Duplicate keys in DeepSpeed config: ['fp16']\n",
            "AssertionError: Micro batch size per gpu: 0 has to be greater than 0\n",
        ],
        ["the batch size has to be greater than 0\n"],
    ),
    "parameters_of_another_dtype": (
        [
            "AssertionError: Model must initialized in fp16 mode for ZeRO Stage 3.\n",
            "ValueError: fp16 is enabled but the following parameters have dtype that is not fp16: head.weight\n",
            "AssertionError: fp16 is not enabled but one or several model parameters have dtype of fp16\n",
        ],
        ["fp16 is enabled but the following parameters are frozen\n"],
    ),
    "loss_not_scalar": (
        ["AssertionError: loss must be a scalar tensor. If you need to pass output gradients, backward() of\n"],
        ["RuntimeError: loss must be a tensor\n"],
    ),
    "lr_before_first_step": (
        ["AssertionError: need to call step() first\n"],
        ["call step() of the optimizer first\n"],
    ),
    "batches_differ_in_tp_group": (
        ["AssertionError: Data inconsistency within the TP group. Please check the Dataloader implementation\n"],
        ["inconsistent data in the TP group\n"],
    ),
    "max_grad_norm_in_config": (
        ["ValueError: 'max_grad_norm' is not supported as an optimizer parameter, please switch to x\n"],
        ["max_grad_norm=1.0\n"],
    ),
    "optimizer_not_accepted": (
        ["AssertionError: Client Optimizer is of unexpected type <class 'str'>\n"],
        ["Using client Optimizer as basic optimizer\n"],
    ),
    "parameter_in_two_groups": (
        [
            "AssertionError: Parameter with name: head.weight occurs multiple times in optimizer.param_groups. Make\n",
            "ValueError: some parameters appear in more than one parameter group\n",
        ],
        ["the parameter occurs multiple times in the log\n"],
    ),
    "combination_not_supported": (
        ["AssertionError: 1bit-Adam is not compatible with ZeRO\n", "AssertionError: MoE not supported with Stage 3\n"],
        ["peft is not compatible with transformers\n", "this is not compatible with DeepSpeed\n"],
    ),
    "said_not_to_go_together": (
        ["this is not compatible with DeepSpeed\n", "DeepSpeed is not compatible with my trainer\n"],
        ["DeepSpeed v0.14.0 is not compatible with the latest image\n"],
    ),
    "resources_of_launcher": (
        ["ValueError: Hostfile contains a bad entry: a b c, unable to proceed with launching\n"],
        ["Unable to find hostfile, will proceed with training with local resources only.\n"],
    ),
    "launcher_sees_no_gpu": (
        ["RuntimeError: Unable to proceed, no GPU resources available\n"],
        ["no resources\n"],
    ),
    "local_ranks_contradict": (
        ["AssertionError: Mismatch in local rank setting, args.local_rank=0 but env['LOCAL_RANK']=1.\n"],
        ["the local rank is 1\n"],
    ),
    "cpu_optimizer_on_gpu": (
        ["AssertionError: CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled 'offload_optimizer'\n"],
        ["the param is on cuda:0\n"],
    ),
    "checkpoint_not_found": (
        [
            "ValueError: Invalid for universal checkpoint: out/latest_universal does not exist\n",
            "ValueError: Unable to find 'latest' file at out/latest\n",
            "FileNotFoundError: can't find *_optim_states.pt files in directory 'out/global_step5'\n",
        ],
        ["the checkpoint does not exist yet\n"],
    ),
    "inference_limits": (
        ["RuntimeError: Input with size 2000 exceeds maximum length of 1024. Please increase max_tokens in the x\n"],
        ["the maximum length is 1024\n"],
    ),
    "flops_profiler": (
        ["AttributeError: 'NewGELUActivation' object has no attribute '__flops__'\n"],
        ["AttributeError: 'NewGELUActivation' object has no attribute '__name__'\n"],
    ),
    "shape_of_partitioned_parameter": (
        ["IndexError: tuple index out of range\n"],
        ["IndexError: list index out of range\n"],
    ),
    "one_process_several_gpus": (
        ["ValueError: DeepSpeed is not compatible with MP. n_gpu: 8, local_world_size: 1.\n"],
        ["ValueError: DeepSpeed is not compatible with MPS.\n"],
    ),
    "installation_failed": (
        ["error: subprocess-exited-with-error\n"],
        ["ModuleNotFoundError: No module named 'torch'\n"],
    ),
    "torch_not_there": (
        ["ModuleNotFoundError: No module named 'torch'\n"],
        ["ModuleNotFoundError: No module named 'torch.sub'\n"],
    ),
    "path_is_none": (
        ["TypeError: expected str, bytes or os.PathLike object, not NoneType\n"],
        ["TypeError: expected str, bytes or an object, not NoneType\n"],
    ),
    "job_hangs": (
        ["训练会hang住\n", "hang in the middle of training\n", "[BUG] DeepSpeed hangs in the first step\n"],
        [
            "stuck in an endless loop\n",
            "a picture that hangs\n",
            "I am stuck on this error\n",
            "stuck in trying to use it\n",
        ],
    ),
    "attribute_missing": (
        ["AttributeError: 'Model' object has no attribute 'x'\n"],
        ["AttributeError: x\n"],
    ),
    "too_many_files": (["OSError: [Errno 24] Too many open files\n"], ["too many files\n"]),
    "ray_actor_died": (
        ["ray.exceptions.ActorDiedError: The actor stopped\n", "The actor died unexpectedly before it was done\n"],
        ["the actor model died\n"],
    ),
    "sizes_are_zero": (
        ["with deepspeed the weight is a tensor of size zero\n", "loaded with deepspeed it has torch.Size([0])\n"],
        ["the weight is torch.Size([0])\n"],
    ),
    "hybrid_engine": (
        [
            "does not support GLM-based model in hybrid engine\n",
            "if(self._inference_containers[0].module.attention.attn_qkvw is not None and x\nIndexError: list index\n",
        ],
        ["deepspeed main.py --enable_hybrid_engine\n"],
    ),
    "keys_of_file": (
        ["KeyError: 'state_dict'\n", "KeyError: 'base_model.model.model.embed_tokens.weight'\n"],
        ["KeyError: 'labels'\n", "KeyError: 'model.decoder.layers.3.self_attn.v_proj.weight'\n"],
    ),
    "layer_in_two_shards": (
        [
            "KeyError: 'model.decoder.layers.3.self_attn.v_proj.weight'\n",
            "KeyError: 'bert.encoder.layer.3.attention.self.key.bias'\n",
        ],
        ["KeyError: 'model.decoder.layers.3.self_attn.q_proj.weight'\n", "KeyError: 'model.key.weight'\n"],
    ),
    "trace_cache_invalidated": (
        ["Invalidate trace cache @ step 14: expected module 19, but got module 34\n"],
        ["the trace cache is valid\n"],
    ),
    "reference_model_refused": (
        [
            "ZeRO 3 fails if the model is made by `trl.create_reference_model()`\n",
            "ValueError: DeepSpeed ZeRO-3 is enabled and is not compatible with `create_reference_model()`.\n",
        ],
        ["create_reference_model() is called\n"],
    ),
    "sizes_differ": (
        [
            "RuntimeError: The size of tensor a (3072) must match the size of tensor b (4096) at dimension 0\n",
            "RuntimeError: shape '[2, 3]' is invalid for input of size 5\n",
        ],
        ["the size of tensor a is 7\n"],
    ),
    "hub_not_reachable": (
        ["OSError: x/y is not a local folder and is not a valid model identifier listed on 'https://a'\n"],
        ["a local folder\n"],
    ),
    "value_is_none": (
        ["TypeError: 'NoneType' object is not subscriptable\n"],
        ["TypeError: 'int' object is not subscriptable\n"],
    ),
    "terminal_closed": (
        ["torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 1\n"],
        ["Process 7 got signal: 12\n"],
    ),
    "two_ranks_on_one_gpu": (
        ["Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000\n"],
        ["GPU detected: 1000\n"],
    ),
    "config_error": (
        ["deepspeed.elasticity.config.ElasticityConfigError: Elasticity config missing max_train_batch_size\n"],
        ["the elasticity config is fine\n"],
    ),
    "saved_on_gpu": (
        ["RuntimeError: Attempting to deserialize object on CUDA device 7 but torch.cuda.device_count() is 1.\n"],
        ["the object is on CUDA device 7\n"],
    ),
    "half_on_cpu": (
        ["RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'\n"],
        ["RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Int'\n"],
    ),
    "gradient_scaler": (
        ["ValueError: Attempting to unscale FP16 gradients.\n"],
        ["the gradients are in fp16\n"],
    ),
    "unused_parameters": (
        ["RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"],
        ["the reduction has finished\n"],
    ),
    # bugs of single releases
    "attention_of_newer_transformers": (
        ["AttributeError: 'LlamaAttention' object has no attribute 'num_heads'\n"],
        ["AttributeError: 'LlamaAttention' object has no attribute 'weight'\n"],
    ),
    "wandb_without_key": (
        [
            "wandb: ERROR Run initialization has timed out after 90.0 sec.\n",
            "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])\n",
        ],
        ["wandb: Currently logged in as: me\n"],
    ),
    "monitor_package_missing": (
        ["If you want to use tensorboard logging, please `pip install tensorboard`\n"],
        ["If you want to use tensorboard, start it\n"],
    ),
    "wandb_sync": (
        ["TypeError: Run.log() got an unexpected keyword argument 'sync'\n"],
        ["TypeError: Run.log() got an unexpected keyword argument 'step'\n"],
    ),
    "bias_without_weight": (
        [
            traceback(
                "UnboundLocalError: cannot access local variable 'dim' where it is not associated with a value",
                ("deepspeed/runtime/zero/linear.py", "backward", "if dim > 2:"),
            )
        ],
        ["UnboundLocalError: cannot access local variable 'dim' where it is not associated with a value\n"],
    ),
    "bf16_optimizer_state": (
        ["AttributeError: 'BF16_Optimizer' object has no attribute 'state'\n"],
        ["AttributeError: 'BF16_Optimizer' object has no attribute 'loss'\n"],
    ),
    "bf16_dp_process_group": (
        ["AttributeError: 'FP16_Optimizer' object has no attribute 'dp_process_group'\n"],
        ["AttributeError: 'FP16_Optimizer' object has no attribute 'process_group'\n"],
    ),
    "refresh_fp32_params": (
        ["AttributeError: 'AdamW' object has no attribute 'refresh_fp32_params'\n"],
        ["AttributeError: 'AdamW' object has no attribute 'refresh'\n"],
    ),
    "launcher_apostrophe": (
        ["ValueError: No closing quotation\n"],
        ["ValueError: no closing bracket\n"],
    ),
    "nvme_file_name": (
        ["OSError: [Errno 36] File name too long: '/nvme/zero_stage_3/optimizer/rank0/a.tensor.swp'\n"],
        ["OSError: [Errno 36] File name too long: 'a'\n"],
    ),
    "communication_dtype_bf16": (
        ["ValueError: Invalid communication_data_type. Supported data types: ['fp16', 'bfp16', 'fp32']. Got: bf16\n"],
        ["the communication_data_type is bf16\n"],
    ),
    "count_needs_newer_torch": (
        ["AssertionError: count_used_parameters_in_backward requires internal PyTorch APIs that are not available\n"],
        ["count_used_parameters_in_backward returned 7\n"],
    ),
    "frozen_parameter_not_found": (
        ["ValueError: failed to find frozen Parameter containing: x in named params\n"],
        ["failed to find it in named params\n"],
    ),
    "grouped_mm_alignment": (
        ["RuntimeError: strides should be multiple of 16 bytes\n"],
        ["strides are multiples of 16 bytes\n"],
    ),
    "deepcopy_of_module": (
        ["TypeError: ZeROOrderedDict.__init__() missing 1 required positional argument: 'parent_module'\n"],
        ["TypeError: f() missing 1 required positional argument: 'x'\n"],
    ),
    "swap_folder": (
        ["AttributeError: 'NoneType' object has no attribute 'swap_folder'\n"],
        ["AttributeError: 'NoneType' object has no attribute 'folder'\n"],
    ),
    "hub_list_files": (
        ["ImportError: cannot import name 'list_files_info' from 'huggingface_hub' (/a/__init__.py)\n"],
        ["ImportError: cannot import name 'x' from 'huggingface_hub' (/a/__init__.py)\n"],
    ),
    "python_too_old": (
        ["TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'\n"],
        ["TypeError: unsupported operand type(s) for %: 'int' and 'NoneType'\n"],
    ),
    "collective_on_cpu": (
        ["RuntimeError: No backend type associated with device type cpu\n"],
        ["a backend for the device type cpu\n"],
    ),
    # from the writing half of the second set of threads (docs/explain.md); library_probed after its count
    "libaio_not_seen": (
        [
            "NVMe offload fails even with libaio-dev\n",
            "async_io is not compatible although libaio-dev is already installed\n",
        ],
        ["If libaio is already installed (perhaps from source), try setting the CFLAGS\n", "apt install libaio-dev\n"],
    ),
    "cufile_not_linked": (
        [
            "ds_report: GDS: undefined references to dlopen, dlsym\n",
            "compiler_compat/ld: /env/lib64/libcufile.so: undefined reference to `std::istream::get()@GLIBCXX_3.4'\n",
        ],
        ["compiler_compat/ld: /env/lib64/libfoo.so: undefined reference to `f'\n"],
    ),
    "report_of_cpu_accelerator": (
        ["deepspeed_ccl_comm ..... [NO] ....... [OKAY]\n"],
        ["async_io ............... [NO] ....... [OKAY]\n"],
    ),
    "accelerator_named_wrongly": (
        [
            "ValueError: DS_ACCELERATOR must be one of ['cuda', 'cpu', 'xpu']. Value \"rocm\" is not supported\n",
            "ValueError: NPU_Accelerator requires torch_npu, which is not installed on this system.\n",
        ],
        ["[INFO] Setting ds_accelerator to cuda (auto detect)\n"],
    ),
    "cpu_operators_for_cuda": (
        ["cannot build FusedAdam for the CPU\n"],
        ["FusedAdam is faster than the CPU's\n"],
    ),
    "installing_fails": (
        [
            "pip install deepspeed fails on Ubuntu\n",
            "Unable to install DeepSpeed in my environment\n",
            "安装deepspeed报错\n",
            "fused_adam cannot be installed\n",
        ],
        ["pip install deepspeed\n", "I use deepspeed installed by conda\n"],
    ),
    "library_probed": (
        [
            "LINK : fatal error LNK1181: cannot open input file 'aio.lib'\n",
            "LINK : fatal error LNK1181: cannot open input file 'cufile.lib'\n",
        ],
        ["LINK : fatal error LNK1181: cannot open input file 'python310.lib'\n"],
    ),
    "talker_left_on_cpu": (
        [
            traceback(
                f"{DEVICES}but found at least two devices, cuda:0 and cpu!",
                ("transformers/models/qwen2_5_omni/modeling_qwen2_5_omni.py", "forward", "x = self.talker(x)"),
            )
        ],
        [
            traceback(
                f"{DEVICES}but found at least two devices, cuda:0 and cpu!",
                ("transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py", "forward", "x = self.proj(x)"),
            )
        ],
    ),
    "engine_without_optimizer": (
        ["AttributeError: 'DeepSpeedZeRoOffload' object has no attribute 'checkpoint_event_prologue' [BUG]\n"],
        [
            "AttributeError: 'DeepSpeedZeRoOffload' object has no attribute 'get_param_coordinator'\n",
            "AttributeError: 'DeepSpeedZeroOptimizer_Stage3' object has no attribute 'step'\n",
        ],
    ),
    "transformers_config_without_base": (
        ["AttributeError: 'HfTrainerDeepSpeedConfig' object has no attribute 'is_zero3'\n"],
        ["AttributeError: 'HfDeepSpeedConfig' object has no attribute 'trainer_config_finalize'\n"],
    ),
    "config_not_of_the_trainer": (
        ["AttributeError: 'HfDeepSpeedConfig' object has no attribute 'trainer_config_finalize'\n"],
        ["AttributeError: 'HfTrainerDeepSpeedConfig' object has no attribute 'is_zero3'\n"],
    ),
    "ppo_needs_plain_models": (
        [
            "AttributeError: 'DeepSpeedEngine' object has no attribute 'base_model_prefix'\n",
            "AttributeError: 'PeftModel' object has no attribute 'base_model_prefix'\n",
        ],
        ["AttributeError: 'DeepSpeedEngine' object has no attribute 'no_sync'\n"],
    ),
    "process_group_pickled": (
        [
            "TypeError: cannot pickle 'torch._C._distributed_c10d.ProcessGroup' object\n",
            "TypeError: cannot pickle `torch._C._distributed_c10d.ProcessGroup` object\n",
        ],
        ["TypeError: cannot pickle '_thread.lock' object\n"],
    ),
    "not_a_deepspeed_checkpoint": (
        ["FileNotFoundError: The provided path is not a valid DeepSpeed checkpoint: last.ckpt\n"],
        ["FileNotFoundError: [Errno 2] No such file or directory: 'last.ckpt'\n"],
    ),
    "loss_scale_searched": (
        [
            "[loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8\n",
            "[logging.py:69:log_dist] [Rank 0] Overflow detected. Skipping step. Attempted loss scale: 8.0\n",
            "Grad overflow on iteration 5\n",
        ],
        ["OverflowError: cannot convert float infinity to integer\n"],
    ),
    "compiler_killed": (
        ["gcc: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"],
        ["gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\n"],
    ),
    "model_made_before_zero3": (
        [
            "ValueError: Model was not initialized with `Zero-3` despite being configured for DeepSpeed Zero-3. Please "
            "re-initialize your model\n"
        ],
        ["ValueError: DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True`\n"],
    ),
    "initializing_partitioned_weight": (
        ["ValueError: Fan in and fan out can not be computed for tensor with fewer than 2 dimensions\n"],
        ["ValueError: fan_in of a tensor\n"],
    ),
    "sizes_not_divisible": (
        ["AssertionError: 4 is not divisible by 8\n"],
        ["WARNING: 4 is not divisible by 8\n"],
    ),
    "expert_group_missing": (
        [
            "AssertionError: expert parallel group is not initialized\n",
            "AssertionError: expert data parallel group is not initialized\n",
        ],
        ["AssertionError: data parallel group is not initialized\n"],
    ),
    "experts_under_zero3": (
        [
            "ZeRO-3 does not work with MoE models\n",
            "Zero 3: InFlight params with the new Mixtral model\n",
            "Compatibility of sparse MoE training with ZeRO3\n",
        ],
        ["ZeRO-3 does not work\n", "MoE training works under ZeRO-2\n"],
    ),
    "megatron_moe_arguments": (
        ["num_experts not properly passed when the model is made\n", "Megatron: error in the MoE training\n"],
        ["DeepSpeed MoE\n", "an error in DeepSpeed MoE\n"],
    ),
    "autotp_fused_layout": (
        ["ValueError: unknown fused_qkv_type\n"],
        ["ValueError: unknown type\n"],
    ),
    "tensor_parallel_training_fails": (
        [
            "   --ds_tensor_parallel_size 4 \\\n每次都会报错\n",
            "AutoTP training of my model fails\n",
            "failure when using auto tensor parallel\n",
        ],
        ["   --ds_tensor_parallel_size 1 \\\n每次都会报错\n"],
    ),
    "autotp_for_a_model": (
        [
            "Please support AutoTP for my model\n",
            "AutoTP does not support this architecture\n",
            "Does DeepSpeed support ResNet in inference\n",
        ],
        ["AutoTP finds the layers\n"],
    ),
    "pipeline_inputs": (
        [
            "Dict input for pipeline parallelism\n",
            "Pipeline parallelism with a layer of multiple inputs\n",
            "TiedLayerSpec which is provided by deepspeed\n",
        ],
        ["Pipeline parallelism with four stages\n"],
    ),
    "pipeline_sends_tensors_only": (
        ["NotImplementedError: Could not send meta type <class 'dict'>\n"],
        ["NotImplementedError: Could not do this\n"],
    ),
    "pipeline_arguments": (
        ["NotImplementedError: Partitioning method even not implemented.\n"],
        ["Partitioning method uniform\n"],
    ),
    "fragment_without_elements": (
        ["    assert fragment_start < fragment_end\nAssertionError: fragment start 7 should be < fragment_end 5\n"],
        [
            # the same number twice is the patch's own symptom
            "    assert fragment_start < fragment_end\nAssertionError: fragment start 7 should be < fragment_end 7\n",
        ],
    ),
    "clipping_failed": (
        [traceback("", ("deepspeed/runtime/zero/stage3.py", "unscale_and_clip_grads", "grad.mul_(1. / scale)"))],
        [
            traceback(
                "ValueError: something else",
                ("deepspeed/runtime/zero/stage3.py", "unscale_and_clip_grads", "grad.mul_(1. / scale)"),
            ),
            traceback(
                f"{DEVICES}but found at least two devices, cuda:0 and cpu!",
                ("deepspeed/runtime/zero/stage3.py", "unscale_and_clip_grads", "grad.mul_(1. / combined_scale)"),
            ),
            "self.unscale_and_clip_grads(sub_group_id, scaled_global_grad_norm)\n",
        ],
    ),
    "chat_step_failed": (
        ["RuntimeError: Step 1 exited with non-zero status 1\n"],
        ["Step 1 of 3\n"],
    ),
    "zero_init_without_stage3": (
        ["deepspeed.zero.Init() doesn't work with stage 2\n"],
        ["deepspeed.zero.Init() doesn't work with stage 3\n", "initialize_gradient_partitioning_data_structures\n"],
    ),
    "timer_started_twice": (
        ["AssertionError: fwd_microstep timer has already been started\n"],
        ["AssertionError: fwd_microstep timer is not started\n"],
    ),
    "blocking_launches_hang": (
        ["Training hangs when full_determinism = True\n", "with CUDA_LAUNCH_BLOCKING=1 it hangs\n"],
        ["For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"],
    ),
    "auto_needs_model_config": (
        [
            traceback(
                "AttributeError: 'Net' object has no attribute 'config'",
                ("transformers/deepspeed.py", "trainer_config_finalize", "hidden_size = model.config.hidden_size"),
            )
        ],
        ["AttributeError: 'Net' object has no attribute 'config'\n"],
    ),
    "batch_size_of_one_rank": (
        ["DeepSpeed sets train_batch_size incorrectly\n"],
        ["DeepSpeed sets train_batch_size to 8\n"],
    ),
    "lightning_on_cpu": (
        ["DeepSpeed only supports GPU but `CPUAccelerator` is used\n"],
        ["DeepSpeed only supports fp16\n"],
    ),
    "backward_without_engine": (
        ["AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'ipg_index'\n"],
        ["self.ipg_index = 0\n"],
    ),
    "saved_without_gathering": (
        [
            "with zero3 the checkpoint's size is only 700K\n",
            "DeepSpeed Zero3 Does Not Save The Whole Model\n",
            "with deepspeed , but when I saved the model, it was only 400M\n",
        ],
        ["with zero2 the checkpoint's size is only 700K\n"],
    ),
    "cuda_optimizer_offloaded": (
        ["RuntimeError: expected input to be on cuda\n"],
        ["RuntimeError: expected input to be on cpu\n"],
    ),
    "offload_needs_deepspeed_optimizer": (
        ["ValueError: ZeRO Offload can only work with DeepSpeed optimizers\n"],
        ["ZeRO Offload works\n"],
    ),
    "two_optimizers_configured": (
        ["ValueError: --adafactor was passed, but also found `optimizer` configured in the DeepSpeed config.\n"],
        ["found `scheduler` configured in the DeepSpeed config\n"],
    ),
    "client_optimizer_offloaded": (
        ["Detected ZeRO Offload and non-DeepSpeed optimizers: This combination should work\n"],
        ["Detected ZeRO Offload\n"],
    ),
    "accumulation_of_config_used": (
        ["Gradient accumulation steps mismatch: GradientAccumulationPlugin has 1, DeepSpeed config has 4.\n"],
        ["Gradient accumulation steps: 4\n"],
    ),
    "release_of_package": (
        [
            "ImportError: cannot import name 'DeepSpeedPlugin' from 'accelerate' (/a/accelerate/__init__.py)\n",
            "cannot import name `is_torch_xla_available` from `transformers.utils`\n",
            "cannot import name \u2018Xyz\u2019 from \u2018peft\u2019\n",
        ],
        ["ImportError: cannot import name 'amp' from 'apexy'\n"],
    ),
    "accelerate_required": (
        [
            "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=0.26.0`: Please run `pip install "
            "x`\n",
            "ImportError: accelerate>=0.20.3 is required for a normal functioning of this module\n",
        ],
        ["accelerate 1.2.0 is installed\n"],
    ),
    "auto_without_value": (
        [
            "ValueError: `optimizer.params.lr` not found in kwargs. Please specify `optimizer.params.lr` without `auto`"
            "(set to correct value) in the DeepSpeed config file or pass it in kwargs.\n"
        ],
        ['{"lr": "auto"} in the DeepSpeed config file\n'],
    ),
    "best_model_of_weights_only": (
        ["ValueError: DeepSpeed can't be used with `save_only_model` along with `load_best_model_at_end`.\n"],
        ["save_only_model=True, load_best_model_at_end=False\n"],
    ),
    "tensors_share_memory": (
        [
            "RuntimeError: \n            Some tensors share memory, this will lead to duplicate memory on disk\n",
            "RuntimeError: The weights trying to be saved contained shared tensors [{'a', 'b'}]\n",
        ],
        ["Removed shared tensor {'lm_head.weight'} while saving.\n"],
    ),
    "llamafactory_refuses": (
        [
            "ValueError: Please use scripts/pissa_init.py to initialize PiSSA in DeepSpeed ZeRO-3.\n",
            "ValueError: Distributed training does not support layer-wise APOLLO.\n",
            "ValueError: Layer-wise BAdam only supports DeepSpeed ZeRO-3 training.\n",
        ],
        ["distributed training does not support this\n"],
    ),
    "quantized_on_other_device": (
        [
            "ValueError: You can't train a model that has been loaded in 8-bit precision on multiple devices\n",
            "ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision on another one\n",
        ],
        ["You can't train a model that has been frozen\n"],
    ),
    "arguments_without_deepspeed": (
        [
            "AttributeError: 'Namespace' object has no attribute 'deepspeed_config'\n",
            "AttributeError: 'TrainingArguments' object has no attribute 'hf_deepspeed_config'\n",
            "AttributeError: 'Seq2SeqTrainingArguments' object has no attribute 'deepspeed_plugin'\n",
        ],
        ["AttributeError: 'Namespace' object has no attribute 'learning_rate'\n"],
    ),
    "adapter_resumed_strictly": (
        ["RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n\tMissing key(s) in state_dict:\n"],
        ['RuntimeError: Error(s) in loading state_dict for Llama:\n\tMissing key(s) in state_dict: "a"\n'],
    ),
    "bitsandbytes_of_partitions": (
        ["Error invalid configuration argument at line 218 in file /build/bitsandbytes/csrc/ops.cu\n"],
        ["Error invalid device ordinal at line 359 in file /build/bitsandbytes/csrc/pythonInterface.c\n"],
    ),
    "reference_model_partitioned": (
        [
            "the DPO reference model and ZeRO-3\n",
        ],
        ["the reference model is loaded\n"],
    ),
    "weights_missing_under_zero3": (
        [
            "zero3: many weights\nvision.layers.0.weight | MISSING |\n",
            "ZeRO-3 loads with MISSING keys of the tower\n",
        ],
        ["vision.layers.0.weight | MISSING |\n"],
    ),
    "weight_conversion_failed": (
        ["RuntimeError: Failed to apply weight conversion for 'model.layers.0.mlp.experts.w'.\n"],
        ["Failed to apply the patch\n"],
    ),
    "resizing_under_zero3": (
        ["embedding_size=0 after it is partitioned\n", "resize_embedding fails with zero3\n"],
        ["resizing embedding works\n", "embedding_size=0.5\n"],
    ),
    "release_required": (
        [
            "ImportError: transformers<4.40,>=4.36 is required for a normal functioning of this module, but found "
            "transformers==4.41.0.\n",
            "ImportError: deepspeed>=0.9.3 is required for a normal functioning of this module, but found 0.8.0.\n",
            traceback("", ("transformers/utils/versions.py", "require_version", "_compare_versions(op, got, want)")),
        ],
        ["transformers is required for a normal functioning of this module\n"],
    ),
    "spread_model_in_ddp": (
        ["ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device\n"],
        ["the arguments only work with one GPU\n"],
    ),
    "cut_in_from_pretrained": (
        [traceback("", ("transformers/modeling_utils.py", "from_pretrained", "return model_class(config)"))],
        [traceback("OSError: 1", ("transformers/modeling_utils.py", "from_pretrained", "return model_class(config)"))],
    ),
    "cut_in_trainer_config": (
        [traceback("", ("transformers/deepspeed.py", "trainer_config_finalize", "raise ValueError("))],
        [traceback("KeyError: 1", ("transformers/deepspeed.py", "trainer_config_finalize", "raise ValueError("))],
    ),
    "not_copyable": (
        ["RuntimeError: Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol\n"],
        ["copy.deepcopy(model)\n"],
    ),
    "name_not_bound": (
        ["UnboundLocalError: cannot access local variable 'scale' where it is not associated with a value\n"],
        ["the local variable scale\n"],
    ),
    "recursion_too_deep": (
        ["RecursionError: maximum recursion depth exceeded while calling a Python object\n"],
        ["maximum recursion depth\n"],
    ),
    "yaml_invalid": (
        ["yaml.scanner.ScannerError: mapping values are not allowed here\n"],
        ["yaml.representer.RepresenterError: cannot represent an object\n"],
    ),
    "samples_not_padded": (
        [
            "ValueError: Unable to create tensor, you should probably activate truncation and/or padding\n",
            "ValueError: expected sequence of length 12 at dim 1 (got 9)\n",
        ],
        ["ValueError: Unable to create a tensor\n"],
    ),
    "nccl_needs_gpus": (
        ["RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n"],
        ["RuntimeError: ProcessGroupNCCL\n"],
    ),
    "packaging_of_pkg_resources": (
        ["ImportError: cannot import name 'packaging' from 'pkg_resources' (/usr/lib/pkg_resources/__init__.py)\n"],
        ["ImportError: cannot import name 'parse' from 'pkg_resources'\n"],
    ),
    "zero_to_fp32_output_directory": (
        [
            "python zero_to_fp32.py . out/model.bin\nRuntimeError: Parent directory out/model.bin does not exist.\n",
            "several bin files from zero_to_fp32\n",
        ],
        ["RuntimeError: Parent directory out/model.bin does not exist.\n"],
    ),
    "partitioned_activations_save_nothing": (
        ["Partitioned activation checkpointing does not reduce memory\n", "partition_activations has no effect\n"],
        ["partition_activations is on\n"],
    ),
    "pipeline_shape_of_first_batch": (
        ["eval_batch needs the eval dataloader's batch_size to be that of training\n"],
        ["eval_batch returns the loss\n"],
    ),
    "second_loader_not_prepared": (
        ["a = accelerator.prepare(train_loader)\nb = accelerator.prepare(eval_loader)\n"],
        ["a = accelerator.prepare(train_loader)\n"],
    ),
    "map_style_name_missing": (
        ["NameError: name 'is_map_style_dataset' is not defined\n"],
        ["NameError: name 'is_map' is not defined\n"],
    ),
    "converter_of_gpt2": (
        [
            traceback(
                "KeyError: 'position_embeddings'",
                ("transformers/models/megatron_gpt2/convert_megatron_gpt2_checkpoint.py", "convert", "x = y[z]"),
            )
        ],
        ["KeyError: 'position_embeddings'\n"],
    ),
    "extension_of_early_release": (
        ["ModuleNotFoundError: No module named 'deepspeed_lamb_cuda'\n"],
        ["ModuleNotFoundError: No module named 'deepspeed_cuda'\n"],
    ),
    "partitions_on_several_devices": (
        ["    assert len(set(t.device for t in tensors)) == 1\n"],
        ["    assert len(tensors) == 1\n"],
    ),
    "accelerator_extension_too_old": (
        ["TypeError: Can't instantiate abstract class XPU_Accelerator with abstract methods is_pinned\n"],
        ["TypeError: Can't instantiate abstract class Accelerator\n"],
    ),
    "retain_graph_not_passed": (
        ["retain_graph=True does not work for engine.backward\n", "I had to pass the argument retain_graph\n"],
        ["retain_graph=True\n"],
    ),
    "zero_init_not_in_effect": (
        ["is_zero_init_model is always False\n", "zero3_init_flag: true has no effect\n"],
        ["zero3_init_flag: true\n"],
    ),
    "not_picklable": (
        [
            "TypeError: cannot pickle '_thread.RLock' object\n",
            "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'\n",
        ],
        ["TypeError: cannot pickle 'torch._C._distributed_c10d.ProcessGroup' object\n"],
    ),
    "purely_quantized": (
        ["ValueError: You cannot perform fine-tuning on purely quantized models. Please attach adapters\n"],
        ["a quantized model is fine-tuned\n"],
    ),
    "quantization_state_missing": (
        [
            "FP4 quantization state not initialized. Please call .cuda() or .to(device) on the LinearFP4 layer "
            "first.\n",
            traceback(
                "AssertionError", ("bitsandbytes/functional.py", "dequantize_4bit", "assert quant_state is not None")
            ),
        ],
        ["assert quant_state is None\n"],
    ),
    "bitsandbytes_without_cuda": (
        [
            "RuntimeError: \n        CUDA Setup failed despite GPU being available.\n",
            "AttributeError: 'NoneType' object has no attribute 'cget_managed_ptr'\n",
        ],
        ["CUDA SETUP: Loading binary\n"],
    ),
    "lora_modules_not_found": (
        ["ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model. Please check the modules\n"],
        ["Target modules: q_proj\n"],
    ),
    "lightning_one_optimizer": (
        [
            "MisconfigurationException: DeepSpeed currently only supports single optimizer, single optional "
            "scheduler.\n",
            "ValueError: Currently only one optimizer is supported with DeepSpeed. Got 2 optimizers instead.\n",
        ],
        ["one optimizer is used with DeepSpeed\n"],
    ),
    "lightning_without_deepspeed": (
        ["MisconfigurationException: To use the `DeepSpeedStrategy`, you must have DeepSpeed installed.\n"],
        ["To use the `FSDPStrategy`, you must have torch\n"],
    ),
    "safetensors_of_partitions": (
        ["safetensors_rust.SafetensorError: Some error\n"],
        ["safetensors 0.4.3\n"],
    ),
    "not_json_serializable": (
        ["TypeError: Object of type dtype is not JSON serializable\n"],
        ["the object is JSON\n"],
    ),
    "tensor_not_json_serializable": (
        ["TypeError: Object of type Tensor is not JSON serializable\n"],
        ["TypeError: Object of type dtype is not JSON serializable\n"],
    ),
    "number_of_results": (
        ["ValueError: not enough values to unpack (expected 4, got 2)\n"],
        ["a, b = values\n"],
    ),
    "value_too_large_for_half": (
        ["RuntimeError: value cannot be converted to type at::Half without overflow\n"],
        ["RuntimeError: value cannot be converted to type int\n"],
    ),
    "backward_dtype": (
        [
            "RuntimeError: Found dtype Float but expected Half\n",
            "[rank3]: RuntimeError: Found dtype Long but expected BFloat16\n",
            "RuntimeError: Found dtype Float but\n    expected BFloat16\n",
        ],
        ["dtype Float\n"],
    ),
    "foreach_mixed": (
        ["RuntimeError: Tensors of the same index must be on the same device and the same dtype except `step`\n"],
        ["tensors on the same device\n"],
    ),
    "compile_failed": (
        [
            "torch._dynamo.exc.Unsupported: call_method\n",
            'torch._dynamo.exc.InternalTorchDynamoError: name "x" is not defined\n',
            '  File "/a/torch/_dynamo/convert_frame.py", line 586, in _compile\n',
        ],
        [
            "torch/_dynamo/convert_frame.py:844] torch._dynamo hit config.cache_size_limit (8)\n",
            "torch.compile failed for f, falling back to torch.jit.script\n",
        ],
    ),
    "pop_from_empty_trace": (
        ["IndexError: pop from an empty deque\n", "[rank6]: IndexError: pop from an empty deque\n"],
        ["IndexError: pop from an empty list\n"],
    ),
    "vocabulary_of_size_zero": (
        ["RuntimeError: shape '[-1, 0]' is invalid for input of size 4096\n", 'config.json: "vocab_size": 0,\n'],
        ["RuntimeError: shape '[-1, 10]' is invalid for input of size 4096\n"],
    ),
    "pydantic_warns_of_old_keys": (
        ["UserWarning: Valid config keys have changed in V2:\n"],
        ["Valid keys\n"],
    ),
    "nodes_do_not_meet": (
        [
            "deepspeed cannot find the other node\n",
            "with 2 nodes the training gets stuck\n",
            "I use two machines with 8 gpus each, and it is stuck at the start\n",
        ],
        ["with 2 nodes the training works\n"],
    ),
    "job_stops_without_error": (
        ["the program hangs, and the GPUs are at 100%\n", "it stops without any error message\n"],
        ["the program ends\n"],
    ),
    "launcher_args_of_pdsh": (
        ["pdsh ignores what I pass by --launcher_args\n"],
        ["deepspeed --launcher openmpi --launcher_args x\n"],
    ),
    "visible_devices_ignored": (
        [
            "Detected CUDA_VISIBLE_DEVICES=1 but ignoring it because one or several of --include/--exclude were used\n",
            "deepspeed: CUDA_VISIBLE_DEVICES has no effect\n",
        ],
        ["export CUDA_VISIBLE_DEVICES=1\n"],
    ),
    "lora_weights_empty": (
        ["after wrapping, lora_A.weight has the shape torch.Size([0])\n", "empty lora weight with zero 3\n"],
        ["lora_A.weight has the shape torch.Size([8, 64])\n"],
    ),
    "parameters_empty_under_zero3": (
        [
            "initialize后模型的权重就自动为空\n",
            "the engine does not gather parameters with zero-3\n",
            "with stage_3 all parameters become empty\n",
            "zero stage 3 makes `numel()` parameters 0\n",
            "with ZeRO-3 p.shape is torch.Size([0])\n",
            "trainable params: 0 || all params: 0 || trainable%: nan\n",
            "('model.norm.weight', tensor([], device='cuda:1', dtype=torch.float16))\n",
        ],
        ["trainable params: 10 || all params: 100\n", "input_ids: tensor([], device='cuda:1')\n"],
    ),
    "universal_with_more_ranks": (
        ["loading from universal checkpoint, rank 3 wants zero_pp_rank_3_mp_rank_00_model_states.pt\n"],
        ["[Torch] Saving /a/zero_pp_rank_3_mp_rank_00_model_states.pt...\n"],
    ),
    "partition_file_missing": (
        [
            "zero_pp_rank_1_mp_rank_00_optim_states.pt FileNotFoundError\n",
            "FileNotFoundError: [Errno 2] No such file or directory: '/a/zero_pp_rank_8_mp_rank_00_optim_states.pt'\n",
            "The following zero checkpoints paths are missing: ['/a/b.pt']\n",
        ],
        ["[Torch] Saved /a/zero_pp_rank_3_mp_rank_00_optim_states.pt.\n"],
    ),
    "experts_loaded_by_number": (
        ["both ranks load the weights of the first 4 experts\n", "expert parallel and load_state_dict\n"],
        ["expert parallel size 2\n"],
    ),
    "compile_without_effect": (
        ["torch.compile is ignored with deepspeed\n", "with --torch_compile there is no `torch.compile` output\n"],
        ["torch.compile(model)\n"],
    ),
    "memory_not_reduced": (
        [
            "zero2和zero3显存基本一样\n",
            "ZeRO-2 takes more CUDA memory than ZeRO-1\n",
            "memory usage is the same for 2 gpus and 4\n",
            "zero3 uses more GPU memory than zero2\n",
            "GPU memory usage is significantly higher than estimated\n",
            "the higher the zero stage, the more memory\n",
            "GPU memory is not reduced with ZeRO-2\n",
            "ZeRO-3 does not reduce anything\n",
        ],
        ["ZeRO-3 reduces the memory\n"],
    ),
    "slower_than_expected": (
        [
            "offload is Significantly Slower Than without\n",
            "pretty low training speed with GRPO\n",
            "training with zero3 is very slow\n",
            "much slower with deepspeed\n",
        ],
        ["training with zero3 is fast\n"],
    ),
    "loss_differs": (
        [
            "Deepspeed vs DDP\n",
            "单卡比多卡deepspeed Zero3效果好\n",
            "loss is different from that with ddp\n",
            "ZeRO-2 does not converge\n",
        ],
        ["loss is 2.1\n"],
    ),
    "resumed_differently": (
        [
            "I load the weights, and the loss becomes very large after the first step\n",
            "the loss after resuming is higher\n",
            "The loss curve changes when loading a checkpoint\n",
            "resume_from_checkpoint: training starts from scratch\n",
            "with finetune the first step is fine, at the second step the loss jumps\n",
        ],
        ["resumed from checkpoint-100\n", "the loss jumps at step 2\n"],
    ),
    "zero3_and_generation": (
        ["with zero3 the model generate can be slow\n", "with ZeRO-3, model.generate returns nonsense\n"],
        ["with ZeRO-2, model.generate returns a text\n"],
    ),
    "initialize_without_model": (
        ["AssertionError: deepspeed.initialize requires a model\n"],
        ["deepspeed.initialize(model)\n"],
    ),
    "pipeline_with_mpu": (
        ["AssertionError: mpu must be None with pipeline parallelism\n"],
        ["mpu is None\n"],
    ),
    "universal_sizes_differ": (
        [
            "AssertionError: Load checkpoint /a/fp32.pt dst numel 8 != src numel 9\n",
            "AssertionError: Loading /a full param numel 16 != tensor slice numel 4 * tp_world_size 2\n",
        ],
        ["Load checkpoint /a/fp32.pt\n", "Warning: Unused patterns=['a'] while merging tp slices\n"],
    ),
    "steps_of_partitions_differ": (
        ["AssertionError: All shards must have the same step value\n"],
        ["the same step\n"],
    ),
    "expert_file_missing": (
        ["FileNotFoundError: Expert checkpoint file not found: /a. Expected layer_0 expert_3.\n"],
        ["saved layer_0_expert_3_mp_rank_00_model_states.pt\n"],
    ),
    "fused_optimizer_limits": (
        ["RuntimeError: FusedAdam does not support sparse gradients\n", "FusedLion only support fp16\n"],
        ["FusedAdam is used\n"],
    ),
    "onebit_backend": (
        ["AssertionError: Please use torch 1.8 or greater to enable NCCL backend in 1-bit Adam.\n"],
        ["NCCL backend\n"],
    ),
    "partitioned_activations_needed": (
        ["AssertionError: Contiguous Checkpointing is only available with partitioned activations.\n"],
        ["partitioned activations: true\n"],
    ),
    "rng_state_not_added": (
        ["Exception: cuda rng state model-parallel-rng is not added\n"],
        ["cuda rng state is saved\n"],
    ),
    "checkpointed_tensors": (
        ["RuntimeError: Only tuple of tensors is supported. Got Unsupported input type: <class 'str'>\n"],
        ["a tuple of tensors\n"],
    ),
    "parameter_without_gradient": (
        ["AssertionError: high precision param has no gradient, lp param_id = 1 group_info = [0][3]\n"],
        ["param has a gradient\n"],
    ),
    "first_tensor_of_partition": (
        ["AssertionError: This can happen either zero or only once as this must be the first tensor in it\n"],
        ["the first tensor\n"],
    ),
    "zero_needs_half": (
        ["AssertionError: DeepSpeedConfig: ZeRO is only supported if fp16 is enabled\n"],
        ["fp16 is enabled\n"],
    ),
    "half_master_weights": (
        ["AssertionError: Fp16_master_weights_and_grads is only supported with ZeRO Stage 2 for now.\n"],
        ['"fp16_master_weights_and_grads": false\n'],
    ),
    "dynamic_scale_required": (
        ["AssertionError: DeepSpeed lamb optimizer requires dynamic loss scaling\n"],
        ["dynamic loss scaling\n"],
    ),
    "reduction_dtype": (
        ["AssertionError: ZeRO-2 supports ['fp16'] communication_data_type with reduce scatter enabled. Got: 'fp64'\n"],
        ['"communication_data_type": "fp16"\n'],
    ),
    "old_zero1_checkpoint": (
        ["Exception: The deprecated version of ZeRO Stage 1 is not supported in deepspeed >= 0.5.9.\n"],
        ["ZeRO Stage 1\n"],
    ),
    "apex_missing": (
        ["RuntimeError: Unable to import apex/amp, please make sure it is installed\n"],
        ["import apex\n"],
    ),
    "stage3_only": (
        ["ValueError: this function requires ZeRO-3 mode\n"],
        ["ZeRO-3 mode\n"],
    ),
    "scheduler_numbers": (
        ["ValueError: warmup_num_steps must be a positive integer, got -1\n"],
        ['"warmup_num_steps": 10\n'],
    ),
    "pipeline_data": (
        ["ValueError: RANK=0 no data iterator provided.\n"],
        ["a data iterator\n"],
    ),
    "pipeline_layers_not_fitting": (
        ["ValueError: expecting a tensor or a tuple of tensors\n"],
        ["a tuple of tensors\n"],
    ),
    "moe_needs_buckets": (
        ["AssertionError: Contiguous Gradients in ZeRO Stage 2 must be set to True for MoE. Other code paths\n"],
        ["MoE in ZeRO Stage 2\n"],
    ),
    "moe_groups_of_mpu": (
        ["AssertionError: Expert parallel group should be configured with MoE\n"],
        ["Expert parallel group\n"],
    ),
    "groups_api_removed": (
        ["DeprecatedException: Please do not use the groups.initialize() API as it is deprecated.\n"],
        ["groups.initialize(ep_size=2)\n"],
    ),
    "parallel_group_missing": (
        ["AssertionError: model parallel group is not initialized\n", "data parallel group is not initialized\n"],
        ["AssertionError: expert parallel group is not initialized\n"],
    ),
    "nvme_swapper_missing": (
        ["AttributeError: 'NoneType' object has no attribute 'available_swap_in_buffers'\n"],
        ["available_swap_in_buffers()\n"],
    ),
    "offload_config_incomplete": (
        ['AssertionError: "nvme_path" in DeepSpeed Config cannot be None if remote device is nvme\n'],
        ['"nvme_path": "/nvme"\n'],
    ),
    "nvme_parameter_not_swappable": (
        ["AssertionError: Parameter 7 of numel=100 is not swappable\n"],
        ["Parameter 7 is swapped\n"],
    ),
    "changed_inside_gathered": (
        [
            "RuntimeError: Detected in-place modification of ZeRO-3 parameters inside GatheredParameters with "
            "modifier_rank=None.\n"
        ],
        ["inside GatheredParameters\n"],
    ),
    "parameter_active_in_modules": (
        ["RuntimeError: Cannot free a ZeRO-3 parameter while it is still active in submodules.\n"],
        ["a ZeRO-3 parameter is active\n"],
    ),
    "parameters_overwritten": (
        [
            "RuntimeError: not all parameters for Linear, were zero params, is it possible that the parameters were "
            "overwritten after they were initialized?\n"
        ],
        ["all parameters were zero params\n"],
    ),
    "leaf_module_without_gradient": (
        [
            "RuntimeError: A module cannot be set as a leaf module when it does not have any input tensors that "
            "require "
            "gradients\n"
        ],
        ["set as a leaf module\n"],
    ),
    "optimizer_of_offload": (
        ["AssertionError: Hybrid Optimizer Only Supports DeepSpeedCPUAdam\n"],
        ["DeepSpeedCPUAdam\n"],
    ),
    "gradient_of_another_size": (
        ["RuntimeError: 8 != 16 Cannot reduce scatter gradients whose size is not same as the params\n"],
        ["reduce scatter gradients\n"],
    ),
    "numactl_settings": (
        ["ValueError: Environment variable KMP_AFFINITY conflicts with numactl because it interfere\n"],
        ["KMP_AFFINITY=granularity=fine\n"],
    ),
    "tensor_parallel_checkpoint_count": (
        ["AssertionError: checkpoint count 3 is different from saved mp_world_size 4\n"],
        ["checkpoint count 3\n"],
    ),
    "tp_settings_contradict": (
        ["ValueError: Conflicting tensor_parallel.autotp_size in config (2) and tp_model_init (4).\n"],
        ["tensor_parallel.autotp_size: 2\n"],
    ),
    "autoep_refuses": (
        ["ValueError: AutoEP preset 'x' does not support model_type='y'.\n"],
        ["AutoEP: 2 layers\n", "AutoEP: no MoE layers detected in model.\n"],
    ),
    "transformer_kernel_batch": (
        ["ValueError: Input batch size exceeds the limit.\n"],
        ["the batch size\n"],
    ),
    "states_not_movable": (
        ["AssertionError: Moving states across devices is not supported without an optimizer.\n"],
        ["Moving states\n"],
    ),
    "deepcompile_limits": (
        ["AssertionError: Currently DeepCompile is not supported without an optimizer.\n"],
        ["DeepCompile\n"],
    ),
    "visible_devices_not_numbers": (
        ["ValueError: invalid literal for int() with base 10: 'GPU-8932f937'\n"],
        ["ValueError: invalid literal for int() with base 10: 'x'\n"],
    ),
    "master_address_empty": (
        [
            "[INFO] [runner.py:417:main] Using IP address of  for node worker-0\n",
            "--master_addr= --master_port=29500\n",
        ],
        ["[INFO] [runner.py:417:main] Using IP address of 10.0.0.1 for node worker-0\n"],
    ),
    "launcher_arguments": (
        ["launch.py: error: the following arguments are required: training_script, training_script_args\n"],
        ["launch.py: started\n"],
    ),
    "program_missing": (
        [
            "FileNotFoundError: [Errno 2] No such file or directory: 'numactl'\n",
            "bash: line 1: torchrun: command not found\n",
        ],
        ["FileNotFoundError: [Errno 2] No such file or directory: 'data'\n"],
    ),
    "started_twice_by_reloader": (
        [" * Restarting with stat\n[W socket.cpp:426] The server socket has failed to bind to [::]:10086\n"],
        ["[W socket.cpp:426] The server socket has failed to bind to [::]:10086\n"],
    ),
    "mpi_launch_failed": (
        ["There are not enough slots available in the system to satisfy the 4 slots\n"],
        ["4 slots\n"],
    ),
    "remote_command_failed": (
        ["pdsh@master: worker-1: ssh exited with exit code 127\n"],
        ["pdsh@master: worker-1: ssh exited with exit code 255\n"],
    ),
    "hostfile_absent": (
        ["[WARNING] [runner.py:202] Unable to find hostfile, will proceed with training with local resources only.\n"],
        ["hostfile: /job/hostfile\n"],
    ),
    "rank_illegal_instruction": (
        ["[launch.py:321] exits with return code = -4\n", "DeepSpeed and Illegal Instruction\n"],
        [
            "[launch.py:321] exits with return code = 4\n",
            "CUDA error: an illegal instruction was encountered\n",
        ],
    ),
    "windows_compiler_missing": (
        ["UserWarning: Error checking compiler version for cl: [WinError 3]\n"],
        ["cl.exe 19\n"],
    ),
    "aio_not_linked": (
        ["/usr/bin/ld: cannot find -laio: No such file or directory\n"],
        ["-laio\n"],
    ),
    "report_of_operators": (
        ["DeepSpeed C++/CUDA extension op report\n"],
        ["op report\n"],
    ),
    "file_not_written": (
        [
            "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file "
            "data/1\n",
            "OSError: [Errno 116] Stale file handle\n",
        ],
        ["PytorchStreamWriter\n"],
    ),
    "numpy_of_another_age": (
        [
            "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.0 as it may crash.\n",
            "AttributeError: module 'numpy' has no attribute 'bool'.\n",
        ],
        ["NumPy 2.0.0\n"],
    ),
    "protobuf_too_new": (["TypeError: Descriptors cannot not be created directly.\n"], ["Descriptors\n"]),
    "torchvision_of_another_torch": (
        ["RuntimeError: operator torchvision::nms does not exist\n"],
        ["torchvision::nms\n"],
    ),
    "transformers_too_old": (
        ["ValueError: Tokenizer class LLaMATokenizer does not exist or is not currently imported.\n"],
        ["Tokenizer class\n"],
    ),
    "accelerate_of_another_release": (
        ["AttributeError: 'AcceleratorState' object has no attribute 'distributed_type'\n"],
        ["AcceleratorState()\n"],
    ),
    "script_arguments_unknown": (
        ["train.py: error: unrecognized arguments: --deepspeed ds_config.json\n"],
        ["train.py: error: unrecognized arguments: --local_rank=0\n"],
    ),
    "npu_memory_full": (
        ["EL0004: 2024-08-28-16:15:00 Failed to allocate memory.\n"],
        ["EL0005: something else\n"],
    ),
    "on_ascend": (
        ["昇腾910B上多卡训练\n", "关于npu训练模型\n", 'NPU_VISIBLE_DEVICES="0,1" deepspeed train.py\n'],
        ["a NPU is not a GPU\n", "Setting ds_accelerator to npu (auto detect)\n"],
    ),
    "on_mac": (
        ["DeepSpeed on Apple Silicon\n", "how to install deepspeed with M2 arm64\n"],
        ["DeepSpeed on machines with A100\n", "install deepspeed on M40 GPUs\n"],
    ),
    "nccl_network": (
        [
            "misc/socket.cc:480 NCCL WARN Bootstrap : no socket interface found\n",
            "NCCL WARN socketStartConnect: Connect to 10.0.0.2<4321> failed : Software caused connection abort\n",
        ],
        ["NCCL INFO Bootstrap : Using eth0\n"],
    ),
    "storage_not_resizable": (["RuntimeError: Trying to resize storage that is not resizable\n"], ["resize storage\n"]),
    "flash_backward_unsupported": (
        ["RuntimeError: Expected is_sm80 || is_sm90 to be true, but got false.\n"],
        ["is_sm80\n"],
    ),
    "checkpoint_of_other_kind": (["KeyError: 'fp32_flat_groups'\n"], ["KeyError: 'something'\n"]),
    "checkpoint_to_weights": (
        ["How to load zero_pp_rank_0_mp_rank_00_model_states.pt\n", "convert a ZeRO-3 checkpoint\n"],
        ["loading a checkpoint\n", "convert the DeepSpeed checkpoint to a universal checkpoint\n"],
    ),
    "installing_on_windows": (
        [
            "pip install deepspeed-0.11.2+cuda121-cp310-cp310-win_amd64.whl\n",
            "C:\\Users\\me>pip install deepspeed\n",
            "on Windows 11 I cannot install deepspeed\n",
        ],
        ["pip install deepspeed\n", "I was able to install deepspeed on Windows\n"],
    ),
    "memory_grows": (["GPU memory keeps increasing during training\n"], ["GPU memory 20 GB\n"]),
    "steps_always_skipped": (["the loss scale keeps decreasing\n", "every step is skipped\n"], ["loss scale 65536\n"]),
    "embeddings_resized": (
        [
            "resize_token_embeddings does not work with deepspeed\n",
            "resizing the embedding with ZeRO-3\n",
            "embedding_size is 0 here\n",
        ],
        ["You are resizing the embedding layer without providing a multiple\n", "embedding_size is 0.5 k\n"],
    ),
    "universal_checkpoint_problem": (
        ["universal checkpoint loading fails\n", "cannot load a universal checkpoint\n"],
        ["Convert DeepSpeed Checkpoint to Universal Checkpoint\n"],
    ),
    "several_models_trained": (
        ["training two models with deepspeed\n"],
        ["two models\n", "I have tried multiple models with deepspeed\n"],
    ),
    "average_of_weights": (["deepspeed stage 3 and an EMA model\n"], ["an EMA model\n"]),
    "pipeline_with_zero2": (
        ["Is pipeline-parallel in conflict with ZeRO-stage2?\n", "pipeline parallelism with ZeRO-2\n"],
        ["pipeline parallelism with ZeRO-1\n"],
    ),
    "rate_is_zero": (["the learning rate is always 0 with deepspeed\n"], ["learning rate is 0.1\n"]),
    # from the writing half of the sixth set of threads (docs/explain.md), and what its lost first half showed
    "experts_diverge": (
        [
            "Qwen-moe with two GPUs will hang during training\n",
            "Qwen3-30B-A3B with zero3 gets no further, the progress bar 卡住不动\n",
            "Qwen3 Omni MoE + ZeRO3微调卡住\n",
            "Mixtral-8x7B with ZeRO-3 hangs in the first step\n",
        ],
        ["Qwen3-30B-A3B trains well\n", "a dense model hangs\n"],
    ),
    "shard_saved_of_tensor_parallel": (
        ["with AutoTP the saved file only contains the weights of one rank\n"],
        ["with AutoTP the model is saved\n"],
    ),
    "resuming_does_not_work": (
        ["resume_from_checkpoint is not working with Deepspeed\n", "Resuming from checkpoint fails\n"],
        ["Resuming from checkpoint /data/checkpoint-3\n"],
    ),
    "saved_model_is_not_the_trained": (
        [
            "zero_to_fp32.py seems to export a wrong model\n",
            "the merged model outputs nonsense\n",
        ],
        ["the saved model is here\n", "the weights do not change during training\n"],
    ),
    "weights_do_not_change": (
        ["the weights do not change during training\n", "the model parameters are not updated\n"],
        ["the weights are not loaded\n"],
    ),
    "checkpoint_is_large": (
        ["the checkpoint is so large\n"],
        ["the checkpoint is here\n"],
    ),
    "loaded_by_each_rank": (
        [
            "the cpu memory of the host is filled by each process\n",
            "why use too much cpu memory, something wrong with my settings?\n",
        ],
        ["CPU memory: 3 GB\n"],
    ),
    "memory_of_first_gpu": (["GPU 0 takes more memory than the others\n"], ["GPU 0: 3 GB of memory\n"]),
    "schedule_not_followed": (
        ["DeepSpeed learning rate scheduler not working\n", "the warmup is not linear\n"],
        ["the scheduler is WarmupLR\n"],
    ),
    "fails_with_zero3_only": (
        [
            "zero2 works, but not the third stage\n",
            "使用zero2没有问题\n",
            "with ZeRO-2 the training runs fine\n",
            "I switched to zero-2 for now\n",
        ],
        ["zero2 fails\n", "with zero2 it stops\n"],
    ),
    "overflow_reported": (
        ["the script gives overflow with fp16\n", "训练时出现overflow\n", "the training has an overflow error\n"],
        ["integer overflows\n", "the text overflows the box\n", "a stack overflow error\n"],
    ),
    "release_makes_the_difference": (
        ["I had to downgrade deepspeed\n", "it broke after upgrading DeepSpeed\n", "降级deepspeed\n"],
        ["please upgrade deepspeed\n", "downgrade torch\n"],
    ),
    "weights_sent_to_vllm": (
        ["vLLM: after the weight sync each answer is gibberish\n", "vLLM 权重同步后输出乱码\n"],
        ["vLLM is fast\n", "vLLM weight sync takes a minute\n"],
    ),
    "optimizer_of_config_counts": (
        ["the option --adafactor is ignored with my config\n", "--optim adamw_8bit 不生效\n"],
        ["--optim adamw_torch\n"],
    ),
    "checkpointing_and_frozen_inputs": (
        ["gradient checkpointing with LoRA trains nothing\n", "enable_input_require_grads is not called\n"],
        ["gradient checkpointing with images\n"],
    ),
    "adapter_checkpoint_merged": (
        ["how can I merge the checkpoint with lora weights\n", "训练完如何合并lora\n"],
        ["merge the branches\n"],
    ),
    "batch_size_not_used": (
        ["accelerate `DeepSpeedPlugin` ignores `deepspeed_config.train_micro_batch_size_per_gpu`\n"],
        [
            '"train_micro_batch_size_per_gpu": 4\n',
            "the effective batch size is 64\n",
            "--overwrite_cache --per_device_train_batch_size 4\n",
        ],
    ),
    "batch_sampler_without_size": (
        ["ValueError: At least one of the dataloaders passed to `accelerate.prepare()` has `None` as batch size.\n"],
        ["batch size None\n"],
    ),
    "gradient_is_none": (
        [
            "No Gradient with Deepspeed\n",
            "GradMonitor doesn't work with deepspeed\n",
            "all my gradients are None after backward\n",
        ],
        ["the gradients are small\n"],
    ),
    "only_one_gpu_used": (
        ["it only uses one GPU\n", "I cannot use multiple GPUs\n"],
        ["uses 8 GPUs\n", "I have only one GPU\n"],
    ),
    "inference_gives_nonsense": (
        [
            "with init_inference the model gives random output\n",
            "The inference result is different from the original model\n",
            "inference gives worse text than Hugging Face\n",
        ],
        ["init_inference took 3 s\n", "a DeepSpeed model that is converted gives gibberish\n"],
    ),
    "loss_does_not_fall": (
        ["the loss suddenly increases\n", "loss不下降\n", "the loss increases\n"],
        ["loss 3.1\n", "the loss increases after resuming\n"],
    ),
    "zero_runtime_exception": (["ZeRORuntimeException when I load it\n"], ["ZeRO exception\n"]),
    "loader_is_not_torchs": (
        ["AttributeError: 'DeepSpeedDataLoader' object has no attribute 'sampler'\n"],
        ["AttributeError: 'DataLoader' object has no attribute 'sampler'\n"],
    ),
    "local_rank_taken_for_command": (
        ["KeyError: '--local-rank=0'\n", "Unknown command: --local_rank=3\n"],
        ["KeyError: 'local_rank'\n"],
    ),
    "gathered_by_global_rank": (
        [
            traceback(
                "IndexError: tuple index out of range",
                ("torch/distributed/nn/functional.py", "backward", "gx = torch.empty_like(grad_outputs[rank])"),
            )
        ],
        [
            traceback(
                "IndexError: tuple index out of range", ("torch/nn/functional.py", "backward", "x = grad_outputs[rank]")
            )
        ],
    ),
    "pinning_fails": (
        [
            traceback(
                "RuntimeError: CUDA error: invalid argument",
                ("deepspeed/accelerator/cuda_accelerator.py", "pin_memory", "return tensor.pin_memory()"),
            )
        ],
        [
            traceback(
                "RuntimeError: CUDA error: invalid argument",
                ("deepspeed/accelerator/cuda_accelerator.py", "to", "return tensor.to()"),
            )
        ],
    ),
    "accumulation_overwritten": (
        ["Updating DeepSpeed's gradient accumulation steps to 1 from 16.\n"],
        ["gradient accumulation steps 16\n"],
    ),
    "accumulation_miscounted": (
        ["incorrect gradient accumulation with deepspeed\n"],
        ["gradient_accumulation_steps 16\n"],
    ),
    "npu_error": (["EZ9999: Inner Error!\n"], ["Ascend 910B\n"]),
    "fastgen_config_not_supported": (
        [
            "ValueError: Config max_tokens=768 type='rms_norm' is not supported by "
            "<class 'deepspeed.inference.v2.modules.implementations.pre_norm.cuda_pre_rms.DSPreRMSCUDAModule'>\n"
        ],
        ["Config max_tokens=768\n"],
    ),
    "cut_in_overflow_check": (
        [
            traceback(
                "", ("deepspeed/runtime/zero/stage3.py", "step", "if self._overflow_check_and_loss_scale_update():")
            )
        ],
        [
            traceback(
                "ValueError: of the test",
                ("deepspeed/runtime/zero/stage3.py", "step", "if self._overflow_check_and_loss_scale_update():"),
            )
        ],
    ),
    "cut_while_saving": (
        [traceback("", ("deepspeed/runtime/engine.py", "save_checkpoint", "self._save_zero_checkpoint(d, t)"))],
        [
            traceback(
                "ValueError: of the test",
                ("deepspeed/runtime/engine.py", "save_checkpoint", "self._save_zero_checkpoint(d, t)"),
            )
        ],
    ),
    "cut_while_loading": (
        [traceback("", ("deepspeed/runtime/engine.py", "load_checkpoint", "self._load_zero_checkpoint(d)"))],
        [
            traceback(
                "ValueError: of the test",
                ("deepspeed/runtime/engine.py", "load_checkpoint", "self._load_checkpoint(d)"),
            )
        ],
    ),
    "cut_while_importing": (
        [traceback("", ("deepspeed/__init__.py", "<module>", "from . import ops"))],
        [traceback("ValueError: of the test", ("deepspeed/__init__.py", "<module>", "from . import ops"))],
    ),
    "cut_in_backward": (
        [traceback("", ("deepspeed/runtime/fp16/loss_scaler.py", "backward", "scaled_loss.backward()"))],
        [traceback("ValueError: x", ("deepspeed/runtime/fp16/loss_scaler.py", "backward", "scaled_loss.backward()"))],
    ),
    "cut_in_initialize": (
        [traceback("", ("deepspeed/__init__.py", "initialize", "engine = DeepSpeedEngine(args=args,"))],
        [traceback("ValueError: x", ("deepspeed/__init__.py", "initialize", "engine = DeepSpeedEngine(args=args,"))],
    ),
    # after the count of the sixth set
    "ranks_wait_in_init": (
        [
            "deepspeed init hang住\n",
            "it hangs in init_process_group\n",
            "Initializing TorchBackend\nit is stuck here\n",
        ],
        ["Initializing TorchBackend in DeepSpeed with backend nccl\n"],
    ),
    "inputs_of_other_kinds_hang": (
        [
            "with text-only samples it hangs\n",
            "stuck with different frames or without images\n",
            "去掉视频数据后就不会卡住\n",
        ],
        ["mixed precision hangs\n", "training on images and video data works\n"],
    ),
    "saving_hangs": (
        [
            "is `save_checkpoint` to be called on rank 0?\n",
            "it hangs while saving\n",
            "save_checkpoint hangs\n",
            "保存模型时卡住\n",
        ],
        ["engine.save_checkpoint(path)\n", "it hangs, saving is off\n"],
    ),
    "waiting_for_rays_resources": (["卡在bundle_reservation_check_func这里\n"], ["ray status\n"]),
    "model_cannot_be_saved": (
        ["dreambooth lora can not save model\n", "error when saving the model\n", "模型保存报错\n"],
        [
            "error when saving the model\nRuntimeError: no space\n",
            "saving the model\n",
            "OSError: handle is closed error when saving the model\n",
        ],
    ),
    "no_partitions_to_join": (
        ["convert ZeRO-0 weights into an fp32 model\n", "zero_to_fp32 with stage 0\n"],
        ["zero_to_fp32 with stage 2\n", "ZeRO-0 in fp32\n"],
    ),
    "cut_while_converting": (
        [traceback("", ("zero_to_fp32.py", "get_fp32_state_dict_from_zero_checkpoint", "return 1"))],
        [traceback("ValueError: 1", ("zero_to_fp32.py", "get_fp32_state_dict_from_zero_checkpoint", "return 1"))],
    ),
    "memory_stays_reserved": (
        [
            "GPU memory is not released\n",
            "'torch.cuda.memory_reserved()' is still high\n",
            "how to free GPU memory after it\n",
        ],
        ["torch.cuda.memory_reserved()\n", "memory is released\n"],
    ),
    "loader_without_distributed_sampler": (
        ["the dataset does not have sampler\n", "the same data on every rank\n"],
        ["a loader with a DistributedSampler\n"],
    ),
    "sampler_for_iterable": (
        ["ValueError: DataLoader with IterableDataset: expected unspecified sampler option\n"],
        ["ValueError: DataLoader with IterableDataset: expected unspecified shuffle option\n"],
    ),
    "config_of_the_engine": (
        ["model.config.router_aux_loss_coef is not used with DeepSpeed\n"],
        ["model.config.hidden_size\n", "model.config.use_cache = False, then run it with deepspeed\n"],
    ),
    "flash_attention_fails": (
        ["使用 FlashAttention-2 训练 单机多卡报错\n", "ERROR of Flash_attn when finetuning\n", "flash-attn error\n"],
        ["flash-attn 2.5\n"],
    ),
    "toolkit_older_than_compiler": (["error: parameter packs not expanded with '...'\n"], ["error: parameter packs\n"]),
    "cut_while_making_optimizer": (
        [traceback("", ("deepspeed/runtime/engine.py", "_configure_basic_optimizer", "optimizer = DeepSpeedCPUAdam("))],
        [
            traceback(
                "TypeError: 1", ("deepspeed/runtime/engine.py", "_configure_basic_optimizer", "optimizer = FusedAdam(")
            )
        ],
    ),
    "padding_on_the_right": (
        ["A decoder-only architecture is being used, but right-padding was detected!\n"],
        ["padding_side is right\n"],
    ),
    "zero_inference_slow": (["ZeRO-Inference is slow\n"], ["ZeRO-Inference is fast\n"]),
    "steps_divided_by_ranks": (
        ["开启 DeepSpeed 后总 step 数显著减少\n", "inconsistent training steps between Trainer and DeepSpeed\n"],
        ["900 steps\n"],
    ),
    "ended_without_error": (
        ["the code stops but I don't get an error\n", "训练中断 没有任何报错\n"],
        ["it stops with an error\n", "正常跑完的 没有任何报错\n"],
    ),
    "evaluation_diverges": (
        ["DeepSpeed hangs during evaluation under multi-GPU\n", "zero3 验证阶段 会卡住\n"],
        ["the evaluation during training\n", "验证阶段 正常\n"],
    ),
    "pipeline_saved_by_layers": (
        [
            "pipeline engine's save_fp16_model method can only save a part of the model's weights\n",
            "AssertionError: PipelineEngine expects module_state_dict() to be called from save_checkpoint()\n",
        ],
        ["save_fp16_model saves all weights\n"],
    ),
    "offload_leaves_gpu_empty": (
        ["Zero3 Offload does not fully utilize GPU memory\n"],
        ["it does not use GPU memory at all\n"],
    ),
    "values_changed_by_the_script": (
        ["How to manipulate parameters of model when training?\n", "change the weights during training\n"],
        ["change the parameters of the config\n"],
    ),
    "hybrid_engine_without_group": (
        ["AttributeError: 'DeepSpeedHybridEngine' object has no attribute 'mp_group'\n"],
        ["AttributeError: 'DeepSpeedHybridEngine' object has no attribute 'group'\n"],
    ),
    "several_jobs_on_machine": (
        ["multiple deepspeed runs in a single machine\n", "两张卡 同一台机器 上跑 两个任务\n"],
        ["multiple runs on different machines\n"],
    ),
    "hostfile_not_found": (
        ["the launcher was unable to detect the hostfile\n", "cannot use a hostfile with another name\n"],
        ["it uses a hostfile of two nodes\n"],
    ),
    "rate_before_first_step": (
        ["tried to get lr value before scheduler/optimizer started stepping, returning lr=0\n"],
        ["tried to get lr value, returning lr=0\n"],
    ),
    "clipping_seems_ignored": (
        [
            "clip grad not working\n",
            "max_grad_norm not effect\n",
            "clip_grad_norm for zero_optimization mode is not working\n",
            "the grad_norm values are greater than max_grad_norm\n",
            "设置 max_grad_norm 不生效\n",
        ],
        ["max_grad_norm: 1.0\n", "does clip_grad_norm_ take all gradients\n"],
    ),
    "config_keys_not_checked": (
        ["a typo in the config file is silently ignored\n", "I misspelled a key of the config\n"],
        ["a warning is silently ignored\n"],
    ),
    "printed_weights_are_placeholders": (
        [
            "I print the model parameters in forward, the printed parameters seem not to be updated\n",
            "Embedding size 0 under stage 3\n",
        ],
        ["print the parameters of the config\n", "Embedding size 512 under stage 3\n"],
    ),
    "second_model_under_zero3": (
        [
            "PPO with deepspeed: an error with zero3\n",
            "用zero3做dpo训练报错\n",
            "the teacher model crashes with ZeRO-3\n",
        ],
        [
            "DPO with deepspeed hangs with zero3, then an error\n",
            "an error with zero3\n",
            "DPO training with one GPU\n",
        ],
    ),
    "frozen_parameters_fail": (
        ["it fails if I freeze the encoder\n", "[BUG] Frozen Layers with stage 2\n"],
        ["I freeze the encoder\n", "it fails\n"],
    ),
    "checkpointing_of_frozen": (
        ["gradient checkpointing fails with LoRA\n", "frozen layers: an error in activation checkpointing\n"],
        ["gradient checkpointing fails\n", "gradient checkpointing with LoRA\n"],
    ),
    "recomputation_refused": (
        ["ray.exceptions.RayTaskError(CheckpointError): ray::Actor.fit()\n"],
        ["ray.exceptions.RayTaskError(ActorError): ray::Actor.fit()\n"],
    ),
    "nvme_offload_fails": (
        [
            "an error with the nvme offload of the optimizer\n",
            "offload to NVMe fails\n",
            'Traceback (most recent call last):\n  File "a.py", line 7, in __prefetch_nvme_param_partitions\n',
        ],
        ["the nvme offload works\n", "an error of the offload\n"],
    ),
    "schedule_and_accumulation": (
        ["wrong lr scheduler with gradient accumulation\n", "the scheduler stepped more than one cycle\n"],
        ["wrong lr scheduler\n", "the lr scheduler steps with gradient accumulation\n"],
    ),
    "first_step_at_full_rate": (
        [
            "the scheduler is ignored in the first training step\n",
            "The lr_scheduler takes effect after optimizer steps\n",
        ],
        ["the first training step of the scheduler\n", "get_lr of the scheduler before the first training step\n"],
    ),
    "gathered_changes_lost": (
        ["deepspeed.zero.GatheredParameters does not work\n", "no effect inside GatheredParameters\n"],
        ["with deepspeed.zero.GatheredParameters(params):\n"],
    ),
    "padding_index_out_of_embedding": (
        ["AssertionError: Padding_idx must be within num_embeddings\n"],
        ["padding_idx=0\n"],
    ),
    "missing_weights_not_initialized": (
        ["Fix how missing weights are initialized with ZeRO-3\n"],
        ["Fix how missing weights are initialized\n", "missing weights with ZeRO-3\n"],
    ),
    "tables_in_half_precision": (
        ["zero3 and bf16 give a higher loss than zero2\n"],
        ["zero3 gives a higher loss than zero2\n", "bf16 gives a higher loss\n"],
    ),
    "parameters_differ_by_step": (
        ["where is find_unused_parameters in DeepSpeed\n", "different trainable parameters in each iteration\n"],
        ["find_unused_parameters=True\n"],
    ),
    "muon_and_zero": (
        [
            "AttributeError: 'Tensor' object has no `use_muon`\n",
            "KeyError: 'use_muon'\n",
            "does the Muon optimizer work with deepspeed\n",
            "ValueError: Muon with reduce scatter does not support optimizer offload because\n",
        ],
        ["the Muon optimizer\n"],
    ),
    "children_used_directly": (
        ["nn.TransformerEncoderLayer does not run\ndeepspeed train.py --config zero3.json\n"],
        ["nn.TransformerEncoderLayer does not run\n"],
    ),
    "zeropp_does_not_work": (
        ["ZeRO++ does not work\n", '"zero_quantized_weights": true leads to a crash\n'],
        ["how to use ZeRO++ here\n", '"zero_quantized_weights": true\n', "update loco-zero++ error buffer\n"],
    ),
    "offload_clipping_of_0142": (
        ["adam_offload and zero3\nan exception, deepspeed v0.14.2\n"],
        ["adam_offload and zero3\nan exception, deepspeed v0.14.4\n", "zero3, deepspeed v0.14.2\n"],
    ),
    "pinned_memory_refused": (
        ["pin_memory() raises something\n", "temp_grad_buffer_for_cpu_offload = get_accelerator().pin_memory(\n"],
        ["pin_memory: true\n"],
    ),
    "zero2_differs_from_zero3": (
        ["grad_norm explodes with zero2, zero3 works\n", "grad_norm: zero2 and zero3 have other values\n"],
        ["zero3 works, zero2 does not\n"],
    ),
    "zero_seems_off": (["zero2 is not taking effect\n", "zero3没有生效\n"], ["this is not taking effect\n"]),
    "unsloth_with_deepspeed": (
        [
            "it fails with Deepspeed Zero3 and unsloth\n",
            "RuntimeError: Unsloth: Deepspeed is not yet supported!\n",
            "how to run unsloth with deepspeed\n",
        ],
        ["this is not yet supported\n", "unsloth with one GPU\n", "Deepspeed is not yet supported on Windows\n"],
    ),
    "wrapped_by_ddp": (
        ["I wrap it in DistributedDataParallel with deepspeed\n"],
        ["DistributedDataParallel is faster than deepspeed\n"],
    ),
    "two_networks_prepared": (
        [
            "--train_text_encoder does not work with deepspeed\n",
            "  unet, text_encoder, optimizer, loader = accelerator.prepare(\n",
        ],
        ["--train_text_encoder does not work\n", "model, optimizer = accelerator.prepare(\n"],
    ),
    "sparse_attention_and_triton": (
        ["sparse attention throws a triton error\n", "triton fails in sparse_dot_sdd_nt\n"],
        [
            "sparse_attn requires a torch version >= 1.5 and < 2.0 but detected 2.1\n",
            "please install triton==1.0.0 if you want to use sparse attention or an untested triton\n",
        ],
    ),
    "size_depends_on_data": (
        [
            "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode: Could not guard on u0\n",
            "MemoryProfiling error: SymIntArrayRef expected to contain only concrete integers\n",
        ],
        ["it has to contain only concrete integers\n"],
    ),
    "autotuning_first_run_failed": (
        ["[ERROR] [autotuner.py:699] The model is not runnable with DeepSpeed with error = (\n"],
        ["The model is not runnable\n"],
    ),
    "compression_only_simulates": (
        [
            "ZeroQuant: the model has the same size as before\n",
            "DeepSpeed Compression gives no speedup\n",
        ],
        ["ZeroQuant: the accuracy is good\n"],
    ),
    "compression_config_incomplete": (
        ["AssertionError: Row Pruning is enabled, shared_parameters must be specified\n"],
        ["Row Pruning is disabled\n"],
    ),
    "flops_profiler_counts": (
        [
            "The flops profiler shows numbers lower than the formula's\n",
            "get_model_profile does not work for my model\n",
        ],
        ["The flops profiler is enabled\n"],
    ),
    "autotuning_found_nothing": (
        ["[INFO] [autotuner.py:1110:run_after_tuning] No optimal DeepSpeed configuration found by autotuning.\n"],
        ["[INFO] optimal DeepSpeed configuration found\n"],
    ),
    "autotuning_fails": (
        ["the autotuning fails at an experiment\n", "autotuning: 报错\n"],
        ["the autotuning is done\n"],
    ),
    "autotuning_requirements": (
        ["AssertionError: Missing required package `tabulate`, please install\n"],
        ["please install tabulate\n"],
    ),
    "curriculum_settings": (
        [
            "AssertionError: Curriculum learning requires the config 'max_difficulty'\n",
            "RuntimeError: Unsupported curriculum schedule type\n",
        ],
        ["Curriculum learning is enabled\n"],
    ),
    "data_analysis_incomplete": (
        ["AssertionError: The number of samples in map result files are not correct.\n"],
        ["The number of samples is 7\n"],
    ),
    "elastic_batch_sizes": (
        ["ValueError: All micro batches must be less than             or equal to max_acceptable_batch_size: 7\n"],
        ["All micro batches are equal\n"],
    ),
    "elastic_config_without_ranks": (
        [traceback("ZeroDivisionError: integer division", ("elasticity.py", "compute_elastic_config", "if a // b:"))],
        ["ZeroDivisionError: integer division\n"],
    ),
    "elastic_training_disabled": (
        ["[INFO] Disabling elastic training support as PyTorch version should be greater than 1.11.x\n"],
        ["[INFO] elastic training is enabled\n"],
    ),
    "mii_server_died": (
        ["RuntimeError: server crashed for some reason, unable to proceed\n"],
        ["the server crashed\n"],
    ),
    "mii_servers": (
        ["[INFO] [server.py:82:_wait_until_server_is_live] waiting for server to start...\n"],
        ["the server has started\n"],
    ),
    "mii_model_list": (
        ["AssertionError: text-generation only supports ['gpt2']\n"],
        ["text-generation is supported\n"],
    ),
    "fastgen_model_not_known": (
        [
            "ValueError: Unsupported model type gemma\n",
            "AssertionError: Mistral requires transformers >= 4.34.0, you have version 4.30\n",
        ],
        ["Unsupported model\n", "ValueError: Unsupported model type for adaption prompt: 'gpt2'.\n"],
    ),
    "fastgen_checkpoint_names": (
        ["RuntimeError: Transformer container at index 0 not fully initialized after checkpoint load.\n"],
        ["the container was initialized\n"],
    ),
    "fastgen_sharding": (
        ["ValueError: The KV heads must be evenly distributed across the shards.\n"],
        ["The heads are distributed\n"],
    ),
    "fastgen_cache_full": (
        [
            "Deadlock detected. Resetting KV cache and recomputing requests.\n",
            "ValueError: Insufficient memory to allocate KV-caches. Required: 7, Available: 1\n",
        ],
        ["Deadlock\n"],
    ),
    "fastgen_old_gpu": (
        ["RuntimeError: Blocked attention requires CUDA compute capability >= 8.0\n"],
        ["CUDA compute capability 8.0\n"],
    ),
    "inference_checkpoint_described": (["KeyError: 'checkpoints'\n"], ["KeyError: 'checkpoint'\n"]),
    "lightning_of_two_packages": (
        [
            "ValueError: You selected an invalid strategy name: "
            "`strategy=<lightning.pytorch.strategies.deepspeed.DeepSpeedStrategy object at 0x7f>`. It must be either a "
            "string or an instance of `pytorch_lightning.strategies.Strategy`.\n"
        ],
        [
            "ValueError: You selected an invalid strategy name: `strategy=None`. It must be either a string or an "
            "instance of `pytorch_lightning.strategies.Strategy`.\n"
        ],
    ),
    "latest_absent": (
        [
            "[WARNING] Unable to find latest file at org/model/latest, if trying to load latest checkpoint please "
            "ensure this file exists\n"
        ],
        ["the latest file is here\n"],
    ),
    "dalle_helper_not_initialized": (
        ["AssertionError: DeepSpeed has not been initialized; please call `deepspeed_utils.init_deepspeed` first\n"],
        ["DeepSpeed has been initialized\n"],
    ),
    "pydantic_without_object": (
        ["RuntimeError: no validator found for <class 'object'>, see `arbitrary_types_allowed` in Config\n"],
        ["RuntimeError: no validator found for <class 'a.B'>, see `arbitrary_types_allowed` in Config\n"],
    ),
    "op_builder_of_another": (
        ["ValueError: attempted relative import beyond top-level package\nwith deepspeed 0.8.1\n"],
        ["ValueError: attempted relative import beyond top-level package\n"],
    ),
    "swapped_larger_than_buffer": (
        ["AssertionError: num_elems 1048> buffer 1000.\n"],
        ["AssertionError: num_elems 1048 > buffer 1000\n"],
    ),
    "first_collective_timed_out": (
        [
            "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key "
            "'0', but store->get('0') got error: Socket Timeout\n"
        ],
        ["[3] retrieves ncclUniqueId from [1], Socket\n"],
    ),
    "launcher_without_other_hosts": (
        [
            "accelerate: multi-node does not work\nWORLD INFO DICT: {'localhost': [0, 1]}\n",
            "WORLD INFO DICT: {'localhost': [0, 1]}\nnum_machines: 4\n",
        ],
        [
            "WORLD INFO DICT: {'localhost': [0, 1]}\nnum_machines: 1\n",
            "multi-node\nWORLD INFO DICT: {'a': [0, 1], 'b': [0, 1]}\n",
        ],
    ),
    "pinning_under_wsl": (
        ["Ubuntu in WSL 2\nRuntimeError: Cuda error: out of memory\n"],
        ["Ubuntu\nRuntimeError: CUDA error: out of memory\n", "WSL 2\nCUDA out of memory. Tried to allocate\n"],
    ),
    "memory_while_saving": (
        ["OOM when saving the 13B model\n", "保存模型时内存不足\n"],
        ["OOM when training\n", "it is saved, then OOM\n"],
    ),
    "numactl_forbidden": (
        ["set_mempolicy: Operation not permitted\n", "does not run in a container, I think because of numactl\n"],
        ["numactl --hardware\n"],
    ),
}


def test_every_signature_has_texts():
    from tests.explain import test_known_crashes

    assert CASES.keys() | test_known_crashes.CASES.keys() == SIGNATURES.keys()


@pytest.mark.parametrize(("signature", "text"), [(name, text) for name, (texts, _) in CASES.items() for text in texts])
def test_recognised(recognised, signature, text):
    assert recognised(f"step 1\n{text}") == [signature]


@pytest.mark.parametrize(("signature", "text"), [(name, text) for name, (_, texts) in CASES.items() for text in texts])
def test_not_recognised(recognised, signature, text):
    assert signature not in recognised(f"step 1\n{text}step 2\n")


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_documented(name):
    signature = SIGNATURES[name]
    assert signature.title == signature.title.strip().rstrip(".")
    assert signature.what.endswith(".")
    assert signature.remedy.endswith(".")
    assert set(signature.patches) <= registry.catalogue().keys()
    for specifiers in signature.affects.values():
        SpecifierSet(specifiers)


def test_each_problem_exists_once():
    known = problems.known()
    ids = [problem.id for problem in known]
    assert len(ids) == len(set(ids))
    patches = [patch for problem in known for patch in problem.patches]
    assert sorted(patches) == sorted(set(patches))
    symptoms = {entry.id for entry in registry.catalogue().values() if entry.patch.symptom}
    assert symptoms <= set(patches)


def test_every_expression_can_be_searched_for():
    """Only the parts of a file around required strings are read, so every expression must require one."""
    for problem in problems.known():
        for expression in problem.expressions:
            found = trigger(list(expression.clauses))
            assert min((len(each.encode()) for each in found), default=0) >= 8, problem.id


def test_harmless_messages_are_notes():
    assert {each.id for each in SIGNATURES.values() if each.role is Role.NOTE} == {
        "sparse_attn_unavailable",
        "report_of_operators",
        "hostfile_absent",
        "client_optimizer_offloaded",
        "accumulation_of_config_used",
        "amp_functions_renamed",
        "broadcast_without_autograd",
        "cpu_adam_without_cuda",
        "device_of_the_group_unknown",
        "distutils_deprecated",
        "libaio_warning",
        "loss_scale_searched",
        "mics_prints_its_handle",
        "pipeline_partitioning_logged",
        "pydantic_field_arguments",
        "pydantic_model_fields",
        "rate_before_first_step",
        "socket_of_ipv6",
        "state_dict_by_position",
        "trace_cache_invalidated",
        "triton_autotune_directory",
        "triton_cache_reported_on_nfs",
    }
