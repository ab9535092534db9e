"""Environment variables of installing, and of compiling operators."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_ds_build_ops",
        names=(
            *("DS_BUILD_OPS", "DS_BUILD_AIO", "DS_BUILD_CPU_ADAM", "DS_BUILD_FUSED_ADAM", "DS_BUILD_FUSED_LAMB"),
            *("DS_BUILD_GDS", "DS_BUILD_UTILS", "DS_BUILD_TRANSFORMER", "DS_BUILD_TRANSFORMER_INFERENCE"),
            *("DS_BUILD_CCL_COMM", "DS_BUILD_QUANTIZER", "DS_BUILD_RANDOM_LTD", "DS_BUILD_FP_QUANTIZER"),
        ),
        title="DS_BUILD_OPS: operators are compiled by pip instead of on first use",
        what="0 is the default on Linux (1 on Windows): pip compiles nothing, and an operator is compiled when a job "
        "first needs it. With 1 pip compiles all that look compatible, and one that fails ends the installation; it "
        "needs torch and nvcc of torch's CUDA release, which pip's isolated build does not see. A cached wheel is "
        "taken as it is, and what pip has compiled is refused with another torch later.",
        remedy="DS_BUILD_OPS=0, or 1 for the ones the job uses only: DS_BUILD_FUSED_ADAM=1, with offload "
        "DS_BUILD_CPU_ADAM=1; pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps deepspeed.",
        beside=("installing", "building", "windows", "how", "importing"),
        evidence=("setup.py:BUILD_OP_DEFAULT", "https://www.deepspeed.ai/tutorials/advanced-install/"),
    ),
    Fact(
        id="of_ds_skip_cuda_check",
        names=("CUDAMismatchException", "assert_no_cuda_mismatch", "builder.py:assert_no_cuda_mismatch"),
        title="nvcc of another release than torch's CUDA",
        what="DeepSpeed compares nvcc -V of CUDA_HOME (or the nvcc in the path) with torch.version.cuda: within CUDA "
        "11 and 12 minor numbers may differ if the release knows both (12.8 since 0.16.4, 12.9 since 0.17.2), "
        "otherwise they have to be equal. DS_SKIP_CUDA_CHECK=1 compiles all the same: an operator may then fail to "
        "compile or crash. The driver's version (nvidia-smi) does not count.",
        remedy="CUDA_HOME of a toolkit of torch's release, or a torch for the installed toolkit; set where the "
        "operator is compiled, also on the other nodes.",
        evidence=("deepspeed.ops.op_builder.builder.assert_no_cuda_mismatch",),
    ),
    Fact(
        id="of_cuda_home",
        names=(
            *("CUDA_HOME", "CUDA_PATH", "MissingCUDAException", "installed_cuda_version"),
            "builder.py:installed_cuda_version",
        ),
        title="CUDA_HOME: where nvcc is, which torch's packages do not contain",
        what="torch and nvidia's pip packages have the CUDA runtime, not the compiler, which is looked for in "
        "CUDA_HOME, the path and /usr/local/cuda. From 0.14.1 to 0.19.4 even import deepspeed needs it on a machine "
        "with a GPU; otherwise only compiling an operator does. A directory without bin/nvcc (a runtime image of "
        "docker, a conda environment with cudatoolkit only) is not enough.",
        remedy="A devel image, or conda install -c nvidia cuda-toolkit=VERSION and CUDA_HOME=$CONDA_PREFIX; "
        "DeepSpeed 0.19.5 or later, or dsfix's op_probe_breaks_import, if no operator is needed.",
        beside=("installing", "building", "importing", "differs"),
        patches=("op_probe_breaks_import",),
        evidence=("deepspeed.ops.op_builder.builder.installed_cuda_version",),
    ),
    Fact(
        id="of_torch_cuda_arch_list",
        names=(
            *("TORCH_CUDA_ARCH_LIST", "compute_capability_args", "cross_compile_archs"),
            *(
                "deepspeed/ops/op_builder/builder.py:compute_capability_args",
                "deepspeed/ops/op_builder/builder.py:filter_ccs",
            ),
        ),
        title="TORCH_CUDA_ARCH_LIST: for which GPUs operators are compiled",
        what="What pip compiles is for the GPUs that it names, or for a list by the toolkit's release (from 6.0 on), "
        "which may lack a newer GPU: no kernel image is available. With CUDA 13 the list has only what that "
        "nvcc does not know. At first use the visible GPUs are taken, before 0.19.0 whatever it says. A capability of "
        "7.x or lower among them switches bf16 off.",
        remedy='TORCH_CUDA_ARCH_LIST="8.0;8.6;9.0" for DS_BUILD_OPS=1, of the GPUs of the job, with a toolkit that '
        "knows them (9.0: CUDA 11.8, 12.0: CUDA 12.8); remove ~/.cache/torch_extensions after a change of GPU.",
        beside=("building", "installing", "importing", "how"),
        evidence=("deepspeed.ops.op_builder.builder.CUDAOpBuilder.compute_capability_args",),
    ),
    Fact(
        id="of_torch_extensions_dir",
        names=("TORCH_EXTENSIONS_DIR", "load_op_builder"),
        title="TORCH_EXTENSIONS_DIR: where compiled operators are kept",
        what="~/.cache/torch_extensions by default, one directory per Python and CUDA, not per release of torch or "
        "DeepSpeed: an operator of another one may be loaded (undefined symbol). Nodes with one home directory and "
        "different GPUs or systems share it.",
        remedy="Remove the operator's directory while no job runs; TORCH_EXTENSIONS_DIR per environment, on a local "
        "disk with several nodes.",
        patches=("extension_cache_shared_by_versions",),
        evidence=("torch.utils.cpp_extension:_get_build_directory",),
    ),
    Fact(
        id="waiting_for_extensions",
        names=("torch_extensions",),
        beside=("hang",),
        title="a job stops at ~/.cache/torch_extensions",
        what="The line is normal: an operator is looked for there, and compiled if it is missing, for minutes. A "
        "process that was killed while compiling leaves a file named lock, for which all later ones wait; so do the "
        "other ranks while one compiles.",
        remedy="End the job and remove the directory; compile once in a single process before the job; with several "
        "nodes TORCH_EXTENSIONS_DIR on a local disk.",
        patches=("extension_cache_shared_by_versions",),
        evidence=("torch.utils.cpp_extension:_jit_compile", "torch.utils.file_baton:FileBaton"),
    ),
    Fact(
        id="of_max_jobs",
        names=("MAX_JOBS", "DS_NVCC_THREADS", "DS_ENABLE_NINJA"),
        title="MAX_JOBS: how many compilers run at once",
        what="At first use ninja starts as many compilers as there are cores, and DeepSpeed (0.13.3 or later) gives "
        "each nvcc up to 8 threads: on a host with little memory they are killed (Killed, signal 9, code 137) and "
        "ninja says that a build step failed. At installation ninja is used, and MAX_JOBS counts, only "
        "with DS_ENABLE_NINJA=1 (0.13.4 or later).",
        remedy="MAX_JOBS=2 and DS_NVCC_THREADS=1 where memory is short; DS_ENABLE_NINJA=1 where DS_BUILD_OPS=1 takes "
        "long.",
        beside=("building", "installing", "oom", "slow", "ends", "host"),
        evidence=("deepspeed.ops.op_builder.builder", "setup.py"),
    ),
    Fact(
        id="of_compiler_flags",
        names=("CFLAGS", "LDFLAGS", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"),
        beside=("nvme", "importing + building"),
        title="CFLAGS, LDFLAGS, LD_LIBRARY_PATH: headers and libraries of operators",
        what="DeepSpeed reads CFLAGS and LDFLAGS only when it looks for libaio; pip's compilation takes them too, but "
        "what is compiled at first use does not: there the compiler's own CPATH and LIBRARY_PATH count. conda's "
        "compiler does not search /usr. LD_LIBRARY_PATH is for loading: an older libstdc++ or CUDA library found first "
        "there makes a compiled operator fail (GLIBCXX not found, undefined symbol).",
        remedy="-I and -L in CFLAGS and LDFLAGS, and the same directories in CPATH and LIBRARY_PATH, for the job, too; "
        "clear ~/.cache/torch_extensions afterwards; ldd on the .so shows what is loaded.",
        evidence=("deepspeed.ops.op_builder.builder.OpBuilder.has_function", "torch.utils.cpp_extension"),
    ),
)
