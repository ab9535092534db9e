"""Environment variables of running: watchdog, memory, cores, caches, precision."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_nccl_async_error_handling",
        names=(
            *("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
            "TORCH_NCCL_ENABLE_MONITORING",
        ),
        title="NCCL_ASYNC_ERROR_HANDLING and the like: what a job does after a timeout",
        what="The first decides whether torch's watchdog ends the process after a collective that did not finish, not "
        "how long it waits: switched off, a job hangs instead of ending. The heartbeat is of the watchdog itself, "
        "which hangs where CUDA or NCCL does. The cause is a rank that did not come: an error, other work (saving, "
        "tokenizing), or another number of batches.",
        remedy="Leave them; py-spy dump of each rank, or TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1, shows where the ranks are; DEEPSPEED_TIMEOUT or ddp_timeout for long work.",
        evidence=("https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",),
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
        beside=("oom", "memory", "grows", "how", "not released"),
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
        names=("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
        title="OMP_NUM_THREADS: cores of each rank, which matter with offload",
        what="torchrun, and so accelerate launch, set it to 1 for several processes unless it is set; DeepSpeedCPUAdam "
        "then computes on one core per rank, many times slower. The deepspeed launcher leaves it alone, so that "
        "without it all ranks use all cores, unless --bind_cores_to_rank divides them (it needs numactl).",
        remedy="OMP_NUM_THREADS = physical cores / ranks of the host with offload_optimizer; without offload "
        "torchrun's message is harmless.",
        beside=("slow + offload", "slow + host", "unused + offload", "how + offload", "slow + launcher"),
        evidence=("torch.distributed.run:config_from_args", "deepspeed.launcher.launch:main"),
    ),
    Fact(
        id="of_triton_cache_dir",
        names=(
            *("TRITON_CACHE_DIR", "TRITON_HOME", "TritonCacheDir", "AutotuneCacheManager"),
            "deepspeed/ops/transformer/inference/triton/matmul_ext.py:put",
        ),
        title="TRITON_CACHE_DIR: DeepSpeed writes Triton's autotune cache when the job ends",
        what="With triton installed DeepSpeed before 0.19.8 looks at that directory (~/.triton/autotune) on import, "
        "and all ranks write it at exit. On a network file system, or with several jobs, that may fail or hang after "
        "training is done, and df may complain. A message at that point does not concern the model.",
        remedy="TRITON_CACHE_DIR=/tmp/… on a local disk, on each node.",
        affects={"deepspeed": "<0.19.8"},
        evidence=("deepspeed.ops.transformer.inference.triton.matmul_ext",),
    ),
    Fact(
        id="of_ds_allow_deprecated_fp16",
        names=("DS_ALLOW_DEPRECATED_FP16", "is_fp16_supported", "is_bf16_supported"),
        title="fp16 and bf16 are refused on a GPU that does not have them",
        what="fp16 needs compute capability 7.0 (V100); from 0.13.0 on it is refused below. DS_ALLOW_DEPRECATED_FP16=1 "
        "(0.13.2 or later) allows it on Pascal (6.x), where it is slow. bf16 is asked of torch, whose newer releases "
        "answer yes on V100 and T4, which only emulate it.",
        remedy="fp32 on Pascal, fp16 on V100 and T4, bf16 from Ampere on.",
        beside=("fails", "how", "slow", "fp16", "bf16"),
        evidence=("accelerator/cuda_accelerator.py", "deepspeed.runtime.engine:DeepSpeedEngine._do_sanity_check"),
    ),
)
