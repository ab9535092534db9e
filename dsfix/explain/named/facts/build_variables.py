"""Environment variables of installing, and of compiling operators."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_ds_build_ops",
        names=(
            "DS_BUILD_OPS",
            "DS_BUILD_AIO",
            "DS_BUILD_CPU_ADAM",
            "DS_BUILD_FUSED_ADAM",
            "DS_BUILD_FUSED_LAMB",
            "DS_BUILD_GDS",
            "DS_BUILD_UTILS",
            "DS_BUILD_TRANSFORMER",
            "DS_BUILD_TRANSFORMER_INFERENCE",
            "DS_BUILD_SPARSE_ATTN",
            "DS_BUILD_CUTLASS_OPS",
            "DS_BUILD_RAGGED_DEVICE_OPS",
            "DS_BUILD_EVOFORMER_ATTN",
            "DS_BUILD_CCL_COMM",
            "DS_BUILD_QUANTIZER",
            "DS_BUILD_RANDOM_LTD",
            "DS_BUILD_INFERENCE_CORE_OPS",
            "DS_BUILD_FP_QUANTIZER",
        ),
        title="DS_BUILD_OPS: operators are compiled by pip instead of on first use",
        what="0 is the default on Linux (1 on Windows): pip compiles nothing, and an operator is compiled when a job "
        "first needs it. With 1 pip compiles all, which fails if one lacks something (libaio, CUTLASS, a CUDA toolkit "
        "of torch's version, an older GPU), and needs torch in the environment: --no-build-isolation. What pip has "
        "compiled does not fit another torch later.",
        remedy="DS_BUILD_OPS=0, or 1 for the ones the job uses only: DS_BUILD_FUSED_ADAM=1, with offload "
        "DS_BUILD_CPU_ADAM=1; pip install --no-build-isolation --no-cache-dir deepspeed.",
        evidence=("setup.py",),
    ),
    Fact(
        id="of_ds_skip_cuda_check",
        names=(
            "DS_SKIP_CUDA_CHECK",
            "CUDAMismatchException",
            "assert_no_cuda_mismatch",
            "deepspeed/ops/op_builder/builder.py:assert_no_cuda_mismatch",
            "builder.py:assert_no_cuda_mismatch",
        ),
        title="DS_SKIP_CUDA_CHECK: nvcc of another version than torch's CUDA",
        what="DeepSpeed compares nvcc --version of CUDA_HOME (or the nvcc in the path) with torch.version.cuda; "
        "other minor versions of CUDA 11 and 12 are accepted, another major version is refused. DS_SKIP_CUDA_CHECK=1 "
        "compiles all the same, which works if nothing changed that the operator uses. The driver's version "
        "(nvidia-smi) does not count.",
        remedy="CUDA_HOME of a toolkit of torch's major version, or a torch for the installed toolkit; the variable "
        "must be set where the operator is compiled, also on the other nodes.",
        evidence=("deepspeed.ops.op_builder.builder.assert_no_cuda_mismatch",),
    ),
    Fact(
        id="of_cuda_home",
        names=(
            "CUDA_HOME",
            "CUDA_PATH",
            "MissingCUDAException",
            "deepspeed/ops/op_builder/builder.py:installed_cuda_version",
            "installed_cuda_version",
            "builder.py:installed_cuda_version",
        ),
        title="CUDA_HOME: where nvcc is, which torch's packages do not contain",
        what="torch and nvidia's pip packages have the CUDA runtime, not the compiler, which is looked for in "
        "CUDA_HOME, the path and /usr/local/cuda. From 0.14.1 to 0.19.4 even import deepspeed needs it on a machine "
        "with a GPU; otherwise only compiling an operator does. A directory without bin/nvcc (a runtime image of "
        "docker, a conda environment with cudatoolkit only) is not enough.",
        remedy="A devel image, or conda install -c nvidia cuda-toolkit=VERSION and CUDA_HOME=$CONDA_PREFIX; "
        "DeepSpeed 0.19.5 or later, or dsfix's op_probe_breaks_import, if no operator is needed.",
        patches=("op_probe_breaks_import",),
        evidence=("deepspeed.ops.op_builder.builder.installed_cuda_version",),
    ),
    Fact(
        id="of_torch_cuda_arch_list",
        names=(
            "TORCH_CUDA_ARCH_LIST",
            "PYTORCH_ROCM_ARCH",
            "compute_capability_args",
            "cross_compile_archs",
        ),
        title="TORCH_CUDA_ARCH_LIST: for compiling at installation only",
        what="Operators that are compiled on first use are made for the GPUs that are visible, and the variable is "
        "ignored. With DS_BUILD_OPS=1 it says for which GPUs, and without it, where no GPU is visible (docker build), "
        "a default list that newer GPUs are not in: no kernel image is available. A capability that nvcc does not "
        "know, or 7.x and lower in it, switches bf16 off or fails.",
        remedy='TORCH_CUDA_ARCH_LIST="8.0;8.6;9.0" for DS_BUILD_OPS=1, of the GPUs of the job; or no DS_BUILD_OPS; '
        "clear ~/.cache/torch_extensions after a change of GPU.",
        evidence=("deepspeed.ops.op_builder.builder.CUDAOpBuilder.compute_capability_args",),
    ),
    Fact(
        id="of_torch_extensions_dir",
        names=(
            "TORCH_EXTENSIONS_DIR",
            "torch_extensions",
            "jit_load",
            "load_op_builder",
        ),
        beside=(
            "hang",
            "fails",
            "building",
            "nodes",
            "importing",
            "start",
            "slow",
        ),
        title="TORCH_EXTENSIONS_DIR: where compiled operators are kept",
        what="~/.cache/torch_extensions by default, one directory per Python and CUDA, not per release of torch or "
        "DeepSpeed: an operator of another one is loaded (undefined symbol). A process that was killed while compiling "
        "leaves a file named lock, for which all others wait. Nodes with one home directory and different GPUs or "
        "systems share it.",
        remedy="Remove the operator's directory; TORCH_EXTENSIONS_DIR per environment, on a local disk with several "
        "nodes; compile once in a single process before the job.",
        patches=("extension_cache_shared_by_versions",),
        evidence=("deepspeed.ops.op_builder.builder.OpBuilder.jit_load",),
    ),
    Fact(
        id="of_max_jobs",
        names=(
            "MAX_JOBS",
            "DS_NVCC_THREADS",
            "DS_ENABLE_NINJA",
            "NVCC_THREADS",
        ),
        title="MAX_JOBS: how many compilers run at once",
        what="torch starts as many compilers as there are cores, and DeepSpeed gives nvcc 8 threads each: on a host "
        "with little memory they are killed (Killed, signal 9, code 137) and ninja says that a build step failed. "
        "Several ranks that compile at once wait for one of them.",
        remedy="MAX_JOBS=2 (and DS_NVCC_THREADS=1, since 0.13.3); DS_ENABLE_NINJA=1 for DS_BUILD_OPS=1.",
        evidence=("deepspeed.ops.op_builder.builder",),
    ),
    Fact(
        id="of_cutlass_path",
        names=(
            "CUTLASS_PATH",
            "DS4Sci_EvoformerAttention",
            "DS_EVOFORMER_GPU_ARCH",
            "EvoformerAttnBuilder",
        ),
        title="CUTLASS_PATH: the evoformer attention needs CUTLASS",
        what="Its operator is compiled on first use from a checkout of CUTLASS (3.1 or later), which pip's deepspeed "
        "does not contain: through 0.19.0 CUTLASS_PATH must name it. It is for NVIDIA GPUs from 7.0 on, fp16 and bf16, "
        "and sequences of more than 16. Compiling takes minutes, and a failed one appears as a missing "
        "evoformer_attn.so.",
        remedy="git clone https://github.com/NVIDIA/cutlass, CUTLASS_PATH=its directory, and clear "
        "~/.cache/torch_extensions; or the model's option without DeepSpeed's attention.",
        evidence=("op_builder/evoformer_attn.py",),
    ),
    Fact(
        id="of_ds_ignore_cuda_detection",
        names=("DS_IGNORE_CUDA_DETECTION",),
        title="DS_IGNORE_CUDA_DETECTION: compiling operators where no GPU is visible",
        what="Inference operators ask for the GPU's capability before they are compiled; the variable skips that, "
        "for building in docker or on a login node. The capabilities then come from TORCH_CUDA_ARCH_LIST.",
        remedy='DS_IGNORE_CUDA_DETECTION=1 TORCH_CUDA_ARCH_LIST="8.0;9.0" DS_BUILD_OPS=1 pip install '
        "--no-build-isolation deepspeed.",
        evidence=("op_builder/inference_core_ops.py",),
    ),
    Fact(
        id="of_compiler_flags",
        names=(
            "CFLAGS",
            "LDFLAGS",
            "CPLUS_INCLUDE_PATH",
            "LIBRARY_PATH",
            "LD_LIBRARY_PATH",
        ),
        beside=(
            "nvme",
            "building",
            "installing",
        ),
        title="CFLAGS, LDFLAGS, LD_LIBRARY_PATH: headers and libraries of operators",
        what="DeepSpeed passes CFLAGS and LDFLAGS on when it looks for libaio and compiles operators: conda's "
        "compiler does not search /usr, and libraries in an own prefix need -I and -L. LD_LIBRARY_PATH is for loading: "
        "an older libstdc++ or CUDA library found first there makes a freshly compiled operator fail (GLIBCXX not "
        "found, undefined symbol).",
        remedy="CFLAGS=-I$PREFIX/include LDFLAGS=-L$PREFIX/lib for the command that compiles, also at run time; "
        "clear ~/.cache/torch_extensions afterwards; ldd on the .so shows what is loaded.",
        evidence=("deepspeed.ops.op_builder.builder.OpBuilder",),
    ),
)
