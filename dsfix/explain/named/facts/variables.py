"""Environment variables of running: timeouts, NCCL, memory, cores, the kind of device."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_deepspeed_timeout",
        names=(
            "DEEPSPEED_TIMEOUT",
            "default_pg_timeout",
            "ddp_timeout",
            "InitProcessGroupKwargs",
            "NCCL_TIMEOUT",
            "NCCL_BLOCKING_WAIT",
        ),
        title="DEEPSPEED_TIMEOUT and ddp_timeout: how long a collective waits",
        what="DEEPSPEED_TIMEOUT is in minutes (0.11.2 and later; 30, since 0.19.6 10), read when deepspeed is "
        "imported, on every node. It counts only if DeepSpeed creates the process group: one that the script, "
        "transformers (ddp_timeout, seconds) or accelerate (InitProcessGroupKwargs) created before keeps its own. "
        "Groups that are created later have torch's default, 10 minutes; there is no NCCL_TIMEOUT.",
        remedy="Set the one of who creates the group first; deepspeed.init_distributed(timeout=timedelta(…)) in the "
        "script. A longer timeout does not help a rank that has diverged or failed: look for it first.",
        evidence=(
            "deepspeed.constants.default_pg_timeout",
            "https://github.com/deepspeedai/DeepSpeed/pull/4405",
        ),
    ),
    Fact(
        id="of_nccl_async_error_handling",
        names=(
            "NCCL_ASYNC_ERROR_HANDLING",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "TORCH_NCCL_BLOCKING_WAIT",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
            "TORCH_NCCL_ENABLE_MONITORING",
        ),
        title="NCCL_ASYNC_ERROR_HANDLING and the like: what a job does after a timeout",
        what="They decide whether the watchdog of torch ends the process after a collective that did not finish, not "
        "how long it waits. Switched off, a job hangs instead of ending. The cause is a rank that did not come: an "
        "error, other work (saving, tokenizing), or another number of batches.",
        remedy="Leave them; py-spy dump of each rank, or TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1, shows where the ranks are; DEEPSPEED_TIMEOUT or ddp_timeout for long work.",
        evidence=("https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",),
    ),
    Fact(
        id="of_deepspeed_env_file",
        names=(
            "deepspeed_env",
            "DS_ENV_FILE",
            "EXPORT_ENVS",
            "EXCLUDE_ENVS",
        ),
        title=".deepspeed_env: variables for the other nodes",
        what="The deepspeed launcher hands over variables that begin with NCCL, PYTHON, MV2, UCX or MLFLOW, and the "
        "lines NAME=value of .deepspeed_env in the home and in the current directory (DS_ENV_FILE: another name), on "
        "several nodes only. torchrun does not. A line without =, even an empty one, stops it; export, quotes and "
        "$VARIABLES are taken literally.",
        remedy="One NAME=value per line, no blank lines; HF_HOME, WANDB_API_KEY, CUDA_HOME and the like must be in "
        "it. On one node export them.",
        patches=(
            "launcher_env_file_of_home",
            "launcher_exports_quoted",
        ),
        evidence=("deepspeed.launcher.runner.main",),
    ),
    Fact(
        id="of_nccl_p2p",
        names=(
            "NCCL_P2P_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_P2P_LEVEL",
            "NCCL_SHM_DISABLE",
        ),
        title="NCCL_P2P_DISABLE, NCCL_IB_DISABLE: tests, and remedies that cost speed",
        what="NCCL_P2P_DISABLE=1 sends through the host's memory: if a hang or an illegal access in the first "
        "exchange goes away, the GPUs' direct way is disturbed (IOMMU, ACS, virtualization, GeForce cards, the "
        "driver). accelerate wants it, and NCCL_IB_DISABLE=1 (sockets instead of InfiniBand), on RTX 40. They do not "
        "help where a rank has failed or diverged.",
        remedy="Keep them only if they make the difference; NCCL_DEBUG=INFO shows what is used, all_reduce_perf of "
        "nccl-tests shows it without DeepSpeed. In docker --shm-size or --ipc=host.",
        evidence=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",),
    ),
    Fact(
        id="of_nccl_socket_ifname",
        names=(
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
            "NCCL_IB_HCA",
            "NCCL_IB_GID_INDEX",
            "TP_SOCKET_IFNAME",
        ),
        title="NCCL_SOCKET_IFNAME: the network interface between the nodes",
        what="NCCL takes an interface by itself, which may be one that does not reach the others (docker0, a virtual "
        "one): the first collective then hangs, or fails with unhandled system error. The name must exist on each node "
        "and can differ (a prefix matches several, ^ excludes). GLOO has a variable of its own, and what is exported "
        "on one node does not reach the others.",
        remedy="ip addr for the name; NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME in .deepspeed_env or in each node's "
        "start script; NCCL_DEBUG=INFO.",
        evidence=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",),
    ),
    Fact(
        id="of_allocator_config",
        names=(
            "PYTORCH_CUDA_ALLOC_CONF",
            "PYTORCH_ALLOC_CONF",
            "expandable_segments",
            "max_split_size_mb",
            "garbage_collection_threshold",
        ),
        title="PYTORCH_CUDA_ALLOC_CONF: against fragmentation, not against too little memory",
        what="expandable_segments:True helps where much is reserved but not allocated, as with ZeRO-3 and batches of "
        "changing lengths. It does not help if what is allocated is as large as the GPU. It must be set before the "
        "process uses the GPU, and does not go with everything (sharing CUDA tensors between processes, some memory "
        "pools of inference engines such as vLLM's sleep mode).",
        remedy="If allocated is close to the whole: a smaller micro-batch, gradient checkpointing, offload; without "
        "expandable_segments where an assertion names it.",
        evidence=("https://docs.pytorch.org/docs/stable/notes/cuda.html",),
    ),
    Fact(
        id="of_omp_num_threads",
        names=(
            "OMP_NUM_THREADS",
            "bind_cores_to_rank",
            "bind_core_list",
            "MKL_NUM_THREADS",
        ),
        title="OMP_NUM_THREADS: cores of each rank, which matter with offload",
        what="torchrun sets it to 1 for several processes and says so; DeepSpeedCPUAdam then computes on one core "
        "per rank. The deepspeed launcher leaves it alone, so that without it all ranks use all cores, unless "
        "--bind_cores_to_rank divides them (it needs numactl).",
        remedy="OMP_NUM_THREADS = physical cores / ranks of the host with offload_optimizer; without offload the "
        "message is harmless.",
        evidence=("deepspeed.launcher.launch",),
    ),
    Fact(
        id="of_triton_cache_dir",
        names=(
            "TRITON_CACHE_DIR",
            "TRITON_HOME",
            "TritonCacheDir",
            "AutotuneCacheManager",
            "deepspeed/ops/transformer/inference/triton/matmul_ext.py:put",
        ),
        title="TRITON_CACHE_DIR: DeepSpeed writes Triton's autotune cache when the job ends",
        what="With triton installed deepspeed looks at that directory (~/.triton/autotune) on import, and all ranks "
        "write it at exit. On a network file system, or with several jobs, that fails or hangs after training is done, "
        "and df may complain. A message at that point does not concern the model.",
        remedy="TRITON_CACHE_DIR=/tmp/… on a local disk, on each node.",
        evidence=("deepspeed.ops.transformer.inference.triton.matmul_ext",),
    ),
    Fact(
        id="of_ds_accelerator",
        names=(
            "DS_ACCELERATOR",
            "get_accelerator",
            "real_accelerator",
            "accelerator_name",
        ),
        title="DS_ACCELERATOR: which kind of device DeepSpeed takes",
        what="Without it DeepSpeed looks for xpu, npu, sdaa, mps, hpu, mlu and cuda in turn, and takes cpu if "
        "nothing is there: an installed package of another device (torch_npu, habana) decides, and a login node or a "
        "container without a GPU is cpu, whose backends and operators differ. It is read once, at the first import.",
        remedy='DS_ACCELERATOR=cuda (cpu, npu, xpu …) for installing and for running; python -c "from '
        'deepspeed.accelerator import get_accelerator as g; print(g()._name)".',
        evidence=("deepspeed.accelerator.real_accelerator.get_accelerator",),
    ),
    Fact(
        id="of_ds_allow_deprecated_fp16",
        names=(
            "DS_ALLOW_DEPRECATED_FP16",
            "is_fp16_supported",
            "is_bf16_supported",
        ),
        title="fp16 and bf16 are refused on a GPU that does not have them",
        what="fp16 needs compute capability 7.0 (V100); since 0.13.2 it is refused below. DS_ALLOW_DEPRECATED_FP16=1 "
        "allows it on Pascal (6.x), where it is slow. bf16 is asked of torch, which from 2.x on answers yes on V100 "
        "and T4 where it only emulates it.",
        remedy="fp32 on Pascal, fp16 on V100 and T4, bf16 from Ampere on.",
        evidence=("accelerator/cuda_accelerator.py",),
    ),
)
