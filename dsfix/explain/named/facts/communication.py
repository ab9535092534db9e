"""How DeepSpeed's processes meet: init_distributed, deepspeed.comm, timeouts; and operators that are compiled."""

from __future__ import annotations

from ..fact import Fact

_BUILDER = "deepspeed/ops/op_builder/builder.py"

FACTS = (
    Fact(
        id="init_distributed_needs",
        names=(
            *("deepspeed.init_distributed", "init_distributed", "dist_init_required", "auto_mpi_discovery"),
            "mpi_discovery",
            "deepspeed/comm/comm.py:init_distributed",
            "deepspeed/comm/comm.py:mpi_discovery",
            "deepspeed/comm/torch.py:init_process_group",
        ),
        title="deepspeed.init_distributed: what it needs",
        what="RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment; if one is missing it asks "
        "MPI, for which mpi4py is imported: plain python and notebooks fail there. It waits until all WORLD_SIZE "
        "processes have come, at the same address and port (DeepSpeed's launcher takes 29500). If torch.distributed is "
        "initialized, it keeps that.",
        remedy="Start with deepspeed, torchrun or accelerate launch; for one process set the five variables. Another "
        "--master_port for a second job on a host.",
        evidence=("deepspeed/comm/comm.py: init_distributed",),
    ),
    Fact(
        id="timeout_of_collectives",
        names=("DEEPSPEED_TIMEOUT", "default_pg_timeout", "default_pg_nccl_timeout", "ddp_timeout"),
        title="the timeout of collective operations with DeepSpeed",
        what="DEEPSPEED_TIMEOUT, in whole minutes, is 30 by default (10 since 0.19.6) and is read at import; a process "
        "group that transformers (ddp_timeout, seconds) or accelerate (InitProcessGroupKwargs) makes first has theirs. "
        "A timeout only says that a rank did not come to an operation, because it is in another one, preprocesses "
        "data, saves, or has ended.",
        remedy="Find the rank that is elsewhere (py-spy dump, its log). Longer times help only with long work of one "
        "rank, such as tokenizing.",
        evidence=("deepspeed/constants.py",),
    ),
    Fact(
        id="frame_collective",
        names=(
            *("deepspeed/comm/torch.py:all_gather_into_tensor", "deepspeed/comm/torch.py:reduce_scatter_tensor"),
            *(
                "deepspeed/comm/torch.py:all_reduce",
                "deepspeed/comm/torch.py:broadcast",
                "deepspeed/comm/torch.py:barrier",
            ),
            *("deepspeed/comm/torch.py:all_gather_object", "deepspeed/comm/torch.py:all_gather"),
        ),
        title="a collective operation of DeepSpeed fails",
        what="By likelihood: another rank has ended or is in another operation (its log has the first error), a CUDA "
        "error of before is reported here, NCCL cannot connect (interface, shared memory of a container, peer access), "
        "the GPU's memory is full, or tensors are not on this rank's GPU, not contiguous, or of another size or dtype "
        "than on other ranks.",
        remedy="NCCL_DEBUG=INFO and the logs of all ranks; CUDA_LAUNCH_BLOCKING=1; a script with one all_reduce.",
        evidence=("deepspeed/comm/torch.py",),
    ),
    Fact(
        id="frame_jit_load",
        names=(f"{_BUILDER}:jit_load", f"{_BUILDER}:load", "jit_load"),
        title="an operator of DeepSpeed is loaded or compiled",
        what="An operator that was not built at installation is compiled by torch at its first use: this needs ninja, "
        "a C++ compiler, for CUDA nvcc of torch's version with its headers, and room in ~/.cache/torch_extensions. "
        "There, what another torch or a killed job has left makes it fail or wait. One that was built at installation "
        "is refused with another version of torch or its CUDA.",
        remedy="ds_report tells what is missing. Delete ~/.cache/torch_extensions; CUDA_HOME of torch's version (nvcc "
        '-V); install DeepSpeed anew without its cache, if it was built for another torch; "torch_adam": true where '
        "Adam is all that is wanted.",
        patches=("extension_cache_shared_by_versions",),
        evidence=(f"{_BUILDER}: OpBuilder.jit_load",),
    ),
    Fact(
        id="frame_cuda_version",
        names=(f"{_BUILDER}:installed_cuda_version", f"{_BUILDER}:assert_no_cuda_mismatch", "DS_SKIP_CUDA_CHECK"),
        title="DeepSpeed asks nvcc for the version of the CUDA toolkit",
        what="It runs CUDA_HOME/bin/nvcc -V; CUDA_HOME is the variable, nvcc's place, or /usr/local/cuda. It fails "
        "without a toolkit (torch's wheels have no nvcc) and, unless DS_SKIP_CUDA_CHECK=1, where the version is not "
        "torch's; minor versions of 11 and 12 may differ if the release knows both (12.3 since 0.12.1, 12.5 since "
        "0.14.3, 12.6 since 0.15.3, 12.8 since 0.16.4, 12.9 since 0.17.2).",
        remedy="Install the toolkit of torch.version.cuda (conda: cuda-nvcc and cuda-cudart-dev) and set CUDA_HOME.",
        evidence=(f"{_BUILDER}: installed_cuda_version, assert_no_cuda_mismatch",),
    ),
    Fact(
        id="frame_cpu_adam_made",
        names=("deepspeed/ops/adam/cpu_adam.py:__init__", "deepspeed/ops/adam/cpu_adam.py:<module>"),
        title="DeepSpeedCPUAdam is made",
        what="It uses cpuinfo (py-cpuinfo) and compiles or loads the operator cpu_adam, which links curand before "
        "0.14.3: errors are of the compiler, a missing CUDA toolkit or library, or a compiled file of another torch or "
        "CPU. Arguments that it does not take and numbers given as strings fail here, too. The exception about "
        "ds_opt_adam in __del__ (through 0.19.7) only follows it.",
        remedy="The compiler's lines above tell which. Delete ~/.cache/torch_extensions; DS_BUILD_CPU_ADAM=1 at the "
        "installation shows all its output.",
        patches=("cpu_adam_del_masks_error",),
        evidence=("deepspeed/ops/adam/cpu_adam.py",),
    ),
)
