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
        ["DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True`\n", "loaded with device_map='auto'\n"],
    ),
    "recomputed_empty": (
        [
            "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
            "tensors have different metadata than during the forward pass.\ntensor at position 19:\n"
            "saved metadata: {'shape': torch.Size([3584]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}\n"
            "recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}\n"
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
    "module_outside_engine": (["RuntimeError: 'weight' must be 2-D\n"], ["RuntimeError: weight must be 2-D or 3-D\n"]),
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
        ],
        ["ImportError: cannot import name 'log' from 'torch.distributed.elastic.utils' (/a/utils.py)\n"],
    ),
    "numpy_bufsize": (
        ["ImportError: cannot import name 'BUFSIZE' from 'numpy' (/a/numpy/__init__.py)\n"],
        ["ImportError: cannot import name 'NAN' from 'numpy' (/a/numpy/__init__.py)\n"],
    ),
    "cuda_library_not_found": (
        ["/usr/bin/ld: cannot find -lcurand: No such file or directory\ncollect2: error: ld returned 1 exit status\n"],
        ["/usr/bin/ld: cannot find -lcurandom: No such file or directory\n"],
    ),
    "extension_build_failed": (
        ["RuntimeError: Error building extension 'fused_adam'\n"],
        ["Building extension module fused_adam...\n"],
    ),
    "cuda_home_missing": (
        [
            "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA "
            "op(s)\n"
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
        [
            "Using /root/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...\n" * 2,
            traceback("KeyboardInterrupt", ("torch/utils/file_baton.py", "wait", "time.sleep(self.wait_seconds)")),
        ],
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
        ["FutureWarning: You are using `torch.load` with `weights_only=False`\n"],
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
    "collective_timeout": (
        [
            "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
            "600004\n",
            "[E ProcessGroupNCCL.cpp:467] WorkNCCL(SeqNum=2, OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for "
            "1800001\n",
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation\n",
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
            "= -9\n",
        ],
        ["the job exits with return code 0\n"],
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
            assert min(map(len, trigger(list(expression.clauses))), default=0) >= 8, problem.id


def test_harmless_messages_are_notes():
    assert {each.id for each in SIGNATURES.values() if each.role is Role.NOTE} == {"triton_autotune_directory"}
