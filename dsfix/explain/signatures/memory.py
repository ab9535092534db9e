"""Memory of the GPU and of the host, NVMe offload, and errors of CUDA."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="gpu_out_of_memory",
        title="the GPU's memory does not suffice",
        what="Per parameter, mixed precision with Adam takes 16 bytes: 2 for the weights, 2 for gradients, 12 for the "
        "optimizer. ZeRO-1 divides the 12 by the number of ranks, ZeRO-2 the gradients too, ZeRO-3 all; activations "
        "come on top, and grow with micro-batch and sequence length.",
        remedy="nvidia-smi: no other process, and no other rank, on this GPU. Smaller micro-batch with more "
        "gradient_accumulation_steps; gradient checkpointing; a higher ZeRO stage; offload_optimizer, then "
        "offload_param to the CPU; smaller buckets (reduce_bucket_size, stage3_prefetch_bucket_size, "
        "stage3_max_live_parameters). If much is reserved but not allocated: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. While saving: ZeRO-3 gathers the model on rank 0. ZeRO-3 "
        "of DeepSpeed 0.12.0 to 0.15.4 and 0.16.8 to 0.19.2 keeps a module gathered that is called twice before its "
        "backward pass (chosen and rejected answers, say): one pass over both inputs, or another release.",
        pattern=r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|HIP out of memory"
        r"|NPU out of memory|CUDA OOM\b",
        role=Role.GENERAL,
    ),
    Signature(
        id="rank_killed",
        title="exit code -9: a rank was killed from outside (SIGKILL)",
        what="The process could report no error. Most likely the host's memory (not the GPU's) was full and the kernel "
        "killed it: offloading to the CPU, every rank loading the whole model, many DataLoader workers, the limit of a "
        "container. Otherwise the scheduler ended the job: its limit of time or memory, or preemption.",
        remedy="`dmesg | tail` on that host and the scheduler's record of the job tell which. Memory: ZeRO-3 with "
        "zero.Init instead of loading everywhere, less offload, fewer ranks or workers, more memory.",
        pattern=r"return code ?=? ?-9\b"
        r"|exit with code -9\b|exits with code -9\b|exited with code -9\b|exit code -9\b"
        r"|exitcode\s*: -9\b|Signal 9 \(SIGKILL|Signal 9 error|signal 9 error"
        r"|<Signals\.SIGKILL: 9>|is killed by signal: Killed|terminated with signal SIGKILL|shows me a SIGKILL"
        r"|get a SIGKILL|got a SIGKILL|receives SIGKILL|received SIGKILL|with SIGKILL|by SIGKILL|SIGKILL error"
        r"|进程被杀|进程杀了|进程被kill|被系统杀|被系统kill|killing-process-9"
        r"|killing process 9",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="rank_bus_error",
        title="exit code -7: a rank ended in a bus error (SIGBUS)",
        what="Most likely /dev/shm is full: NCCL and DataLoader workers share memory through it, and a container has "
        "64 MB by default. Otherwise a file that is mapped into memory was truncated, or its disk is full.",
        remedy="docker run --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of medium Memory at /dev/shm); `df -h "
        "/dev/shm` while it runs. NCCL_SHM_DISABLE=1 or num_workers=0 shows who uses it.",
        pattern=r"return code ?=? ?-7\b"
        r"|exit with code -7\b|exits with code -7\b|exited with code -7\b|exit code -7\b"
        r"|exitcode\s*: -7\b|Signal 7 \(SIGBUS|Signal 7 error|Bus error \(core dumped"
        r"|Caught signal 7 \(Bus error|Fatal Python error: Bus error|<Signals\.SIGBUS: 7>"
        r"|is killed by signal: Bus error|\d Bus error",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="rank_crashed",
        title="exit code -11: a rank crashed in native code (SIGSEGV)",
        what="A library that is not Python accessed memory that it does not have, so there is no traceback. Most "
        "likely a compiled module that was built for another torch or CUDA (an operator of DeepSpeed, attention, "
        "quantization), or NCCL and the driver.",
        remedy="`python -X faulthandler` (PYTHONFAULTHANDLER=1) names the place; remove ~/.cache/torch_extensions; "
        "reinstall compiled packages for this torch; try an all_reduce without DeepSpeed.",
        pattern=r"return code ?=? ?-11\b"
        r"|exit with code -11\b|exits with code -11\b|exited with code -11\b|exit code -11\b"
        r"|exitcode\s*: -11\b|Signal 11 \(SIGSEGV|Signal 11 error|Segmentation fault|segmentation fault"
        r"|Segmentation Fault|got segfault|get segfault|gets segfault|a segfault|出现段错误|报段错误|"
        + phrases("segfault |segfaults |Segfault |SegFault |segfaulted ", "when|in |while|during|at |on |after|with")
        + r"|<Signals\.SIGSEGV: 11>|terminated with signal SIGSEGV",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="rank_aborted",
        title="exit code -6: a rank aborted itself (SIGABRT)",
        what="An error of C++ or of torch's watchdog of collectives ended the process.",
        remedy="Its message is above, with terminate called, what() or Watchdog.",
        pattern=r"return code(?: =)? ?-6\b|exitcode\s*: -6\b|Signal 6 \(SIGABRT|<Signals\.SIGABRT: 6>"
        r"|is killed by signal: Aborted",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="rank_arithmetic_error",
        title="exit code -8: a rank ended in an arithmetic error of native code (SIGFPE)",
        what="A division by zero in a library that is not Python, so there is no traceback. Known of NVIDIA H20 with a "
        "cuBLAS that does not know this GPU.",
        remedy="H20: pip install nvidia-cublas-cu12==12.4.5.8 (or later), and its lib directory first in "
        "LD_LIBRARY_PATH. Otherwise PYTHONFAULTHANDLER=1 names the place.",
        pattern=r"return code(?: =)? ?-8\b|exitcode\s*: -8\b|Signal 8 \(SIGFPE|Floating point exception"
        r"|<Signals\.SIGFPE: 8>",
        role=Role.POSSIBLE,
        evidence=("https://github.com/hiyouga/LlamaFactory/issues/2750",),
    ),
    Signature(
        id="host_out_of_memory",
        title="the host's memory does not suffice",
        what="Offloading to the CPU takes 12 to 16 bytes per parameter over all ranks of a host; pinned memory and "
        "several ranks that each load the whole model come on top.",
        remedy='Fewer ranks that load (ZeRO-3 with zero.Init), no offload_param, "pin_memory": false, more memory '
        "or swap; ulimit -l unlimited for pinned memory.",
        pattern=r"DefaultCPUAllocator: |Cannot allocate memory|oom-kill",
        role=Role.GENERAL,
    ),
    Signature(
        id="bad_alloc",
        title="std::bad_alloc: C++ code asked for memory and got none",
        what="Most likely the host's memory, or a container's limit, is full (offloading, every rank loading the "
        "model). If there is plenty: a nonsensical size was asked for, as where two nodes or two libraries do not "
        "understand each other (other releases of torch or NCCL, another service at that port), or from a damaged "
        "file.",
        remedy="free -g while it starts; the same image and releases on all nodes, NCCL_SOCKET_IFNAME, another "
        "MASTER_PORT.",
        pattern=r"std::bad_alloc",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3126",),
    ),
    Signature(
        id="out_of_memory",
        title="out of memory, on the GPU or on the host",
        what="On the GPU: weights, gradients and optimizer take 16 bytes per parameter with Adam in mixed precision, "
        "divided by ZeRO; activations come on top. On the host: offloading, loading a checkpoint on every rank. "
        "zero_to_fp32 and saving gather the whole model in one process.",
        remedy="GPU: a smaller micro-batch, gradient checkpointing, a higher ZeRO stage, offload. Host: fewer ranks "
        "per host, less offload; zero_to_fp32 with --max_shard_size, or on a host with more memory.",
        # not advice: "# decrease if out of memory"
        pattern=r"(?<!if )(?<!avoid )(?<!Avoid )(?<!prevent )(?<!in case of )(?<!when running )(?<!If )(?<!avoids )"
        r"(?<!previously had )out of memory|out-of-memory|OOM when|OOM during|(?<!of )OOM error"
        r"|(?<!of )OOM issue(?!s with)|(?<!but cause )OOM after|OOM while"
        r"|Out of memory|Out Of Memory|(?<!Avoid )(?<!Prevent )Out of Memory|OutOfMemory|CUDA OOM|cuda oom|GPU OOM "
        r"|deepspeed oom|deepspeed OOM|DeepSpeed OOM|training OOM|training oom"
        r"|gets OOM |I get OOM|I got OOM|显存不足|显存不够|显存溢出|爆显存(?!.尝试)|显存爆|显存炸|报OOM错"
        r"|就会OOM|出现OOM|导致OOM",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="disk_full",
        title="the disk, or the temporary directory, is full",
        what="Checkpoints of ZeRO with Adam take 12 to 14 bytes per parameter; compiled operators and data sets are "
        "in the home directory. For a file /torch_… it is /dev/shm, of which a container has 64 MB (docker "
        "--shm-size).",
        remedy="Free space; TMPDIR, HF_HOME, TORCH_EXTENSIONS_DIR on another disk; save_only_model or fewer "
        "checkpoints (save_total_limit).",
        pattern=r"No space left on device|Disk quota exceeded",
        role=Role.GENERAL,
    ),
    Signature(
        id="nvme_file_size",
        title="NVMe offload: a swapped tensor was not written completely",
        what="A file in nvme_path has another size than the tensor. Most likely the disk or the quota is full, or "
        "files of an earlier or a parallel job are in the same directory; a file system that asynchronous IO does not "
        "support well (network, overlay) does the same.",
        remedy="Free the disk, delete zero_stage_3 in nvme_path, one nvme_path per job, on a local NVMe disk.",
        pattern=r"buffer nbytes != file bytes|buffer\.nbytes\(\)\) == num_file_bytes",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2006",
            "https://github.com/deepspeedai/DeepSpeed/issues/3376",
        ),
    ),
    Signature(
        id="nvme_buffers",
        title="NVMe offload: offload_param's buffers are too small or too few",
        what='"More elements … than buffer size": a parameter, usually an embedding, is larger than buffer_size '
        '(elements). "Not enough buffers", "No buffer": more parameters are in use at once than buffer_count.',
        remedy='Raise offload_param\'s "buffer_size" above the number in the message, or "buffer_count"; lower '
        "stage3_prefetch_bucket_size and stage3_max_live_parameters. All buffers together take pinned host memory.",
        pattern=r"More elements \d+ than buffer size|Not enough buffers \d+ for swapping"
        r"|No buffer available to swap param|No swap buffers to allocate for fp16 param",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/3506",
            "https://github.com/deepspeedai/DeepSpeed/issues/3062",
        ),
    ),
    Signature(
        id="index_out_of_range_on_gpu",
        title="an assertion on the GPU: an index is out of range",
        what="Most likely a token id is not smaller than the embedding's number of rows (tokens were added without "
        "resizing, another tokenizer), a label is out of range, or a position exceeds the model's maximum.",
        remedy="Compare the largest id with the embedding; model.resize_token_embeddings(len(tokenizer)), or with "
        "Megatron the tokenizer and vocabulary that the data were prepared with. CUDA_LAUNCH_BLOCKING=1, or one batch "
        "on the CPU, names the line.",
        pattern=r"Assertion `?srcIndex < srcSelectDimSize`? failed|Assertion `?index out of bounds"
        r"|Assertion `?ind >= 0 &&"
        r"|Assertion `?-sizes\[i\] <= index"
        r"|Assertion `t >= 0 && t < n_classes` failed",
        role=Role.GENERAL,
    ),
    Signature(
        id="assertion_on_gpu",
        title="device-side assert: a kernel on the GPU got an invalid value",
        what="The line with Assertion, above, says which. Most likely an index out of range (a token id beyond the "
        "embedding, a label, a position). In generation: probabilities with inf or nan, of a model that gives them "
        "(fp16, broken weights). In a binary cross entropy: values outside of 0 to 1.",
        remedy="CUDA_LAUNCH_BLOCKING=1, or one batch on the CPU, names the line; compare the largest id with the "
        "embedding; bf16, do_sample=False.",
        pattern=r"device-side assert triggered|Assertion `?input_val >= zero",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="illegal_memory_access",
        title="CUDA: illegal memory access",
        what="A kernel read or wrote outside of its tensors; the traceback often points to a later line. Most likely a "
        "compiled module (attention, quantization, an operator of DeepSpeed) that does not fit torch, GPU or shape, or "
        "tensors on different GPUs.",
        remedy="CUDA_LAUNCH_BLOCKING=1 names the line. Try without the extra kernels (flash attention, fused "
        "optimizers, quantization), and with one GPU.",
        pattern=r"[Ii]llegal memory access|an illegal memory access was",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="no_kernel_for_gpu",
        title="a compiled module has no code for this GPU",
        what="torch, or an operator that was compiled on or for another machine, does not include this GPU's "
        "architecture.",
        remedy="A build of torch for a newer CUDA; for operators remove ~/.cache/torch_extensions, and set "
        "TORCH_CUDA_ARCH_LIST when they are built elsewhere.",
        pattern=r"no kernel image is available for execution on the device",
        role=Role.GENERAL,
    ),
    Signature(
        id="more_ranks_than_gpus",
        title="invalid device ordinal: a rank has no GPU",
        what="More ranks per host are started than GPUs are visible, LOCAL_RANK counts over all hosts, or the script "
        "names a GPU by a number that is not visible.",
        remedy="nproc_per_node, --num_gpus or the hostfile's slots as CUDA_VISIBLE_DEVICES has GPUs.",
        pattern=r"CUDA error: invalid device ordinal",
        role=Role.GENERAL,
    ),
    Signature(
        id="cublas_failed",
        title="cuBLAS or cuDNN reports an error",
        what="STATUS_NOT_INITIALIZED and ALLOC_FAILED: most likely the GPU's memory is full. EXECUTION_FAILED: "
        "an index out of range earlier (token ids beyond the embedding), or a cuBLAS that does not fit the driver.",
        remedy="A smaller micro-batch; CUDA_LAUNCH_BLOCKING=1 names the line; unset LD_LIBRARY_PATH if it names "
        "another CUDA.",
        pattern=r"CUDNN_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
        r"|CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|EXECUTION_FAILED|INTERNAL_ERROR|INVALID_VALUE)",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="cuda_in_forked_process",
        title="CUDA was used before a process was forked",
        what="A CUDA context exists in the parent: `import deepspeed` makes one from 0.14.1 to 0.19.2, and so does "
        "anything that puts a tensor on the GPU at import.",
        remedy="DeepSpeed 0.19.3 or later; start workers by spawn; import deepspeed after the data is prepared.",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        role=Role.GENERAL,
        evidence=pull(8078),
    ),
    Signature(
        id="index_out_of_range",
        title="an embedding's index is out of range",
        what="Most likely a token id is not smaller than the embedding's number of rows (tokens were added without "
        "resizing, another tokenizer), or a sequence is longer than the model's positions. With ZeRO-3 also an "
        "embedding that is not gathered.",
        remedy="model.resize_token_embeddings(len(tokenizer)); truncate; compare the largest id with the embedding.",
        pattern=r"IndexError: index out of range in self",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="pinning_under_wsl",
        title="WSL 2: most likely CUDA cannot pin as much of the host's memory",
        what="Offloading pins its buffers in the host's memory, and WSL 2 lets CUDA pin a part of it only, however "
        'much is given to it. The driver then says "CUDA error: out of memory"; torch\'s message for a full GPU is '
        '"CUDA out of memory. Tried to allocate". Otherwise another process has the GPU\'s memory.',
        remedy='"pin_memory": false in offload_optimizer and offload_param; for ZeRO-1 and 2 a DeepSpeed after 0.10.0, '
        "which heeds it. Or Linux without WSL. nvidia-smi shows whether the GPU is full.",
        pattern=r"(?:WSL|wsl)[\s\S]{0,3000}[Cc][Uu][Dd][Aa] error: out of memory"
        r"|[Cc][Uu][Dd][Aa] error: out of memory[\s\S]{0,1500}(?:WSL|wsl)",
        role=Role.GENERAL,
    ),
    Signature(
        id="memory_while_saving",
        title="the memory is exceeded while a checkpoint or the model is saved",
        what="GPU: with ZeRO-3 stage3_gather_16bit_weights_on_model_save (fp16 in the name of old releases) gathers "
        "the 16-bit weights, a layer at a time, a script's own GatheredParameters perhaps all at once; old releases of "
        "DeepSpeed copy what is saved on the GPU. Host: with ZeRO-3 rank 0 gets the whole model; with ZeRO-0 to 2 "
        "the Trainer and accelerate copy the whole model to the host on every rank (ranks per host times its size); "
        "the ranks write their optimizer states at the same time.",
        remedy="ZeRO-3: stage3_gather_16bit_weights_on_model_save false, and zero_to_fp32.py afterwards. ZeRO-2 and a "
        "full host: ZeRO-3, which gathers on rank 0 only; fewer ranks per host. GPU: "
        "get_accelerator().empty_cache() before saving, and a newer DeepSpeed.",
        pattern=phrases(
            "OOM |oom |out of memory |Out of memory |OutOfMemoryError ",
            "during sav|during the sav|while sav|when sav|when I save|at saving|on saving|on model save"
            "|in save_checkpoint",
        )
        + "".join(
            rf"|{what}[^\n]{{0,20}}(?:OOM|内存暴涨|内存溢出|内存不足|爆内存|显存不足|爆显存|显存溢出)"
            for what in ("保存模型", "保存权重", "保存checkpoint", "保存检查点")
        ),
        role=Role.GENERAL,
    ),
)
