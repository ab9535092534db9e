"""DeepSpeed's operators: how they are compiled, with which variables, and the ones that people meet."""

from __future__ import annotations

from ..fact import Fact

_BUILDER = "op_builder.builder"
_FRAMES = "deepspeed/ops/op_builder"

FACTS = (
    Fact(
        id="operators_built_at_installation",
        names=(
            *("DS_BUILD_OPS", "DS_BUILD_CPU_ADAM", "DS_BUILD_FUSED_ADAM", "DS_BUILD_UTILS", "DS_BUILD_AIO"),
            *("DS_BUILD_TRANSFORMER_INFERENCE", "DS_BUILD_FUSED_LAMB", "DS_BUILD_TRANSFORMER", "DS_BUILD_GDS"),
            "DS_ENABLE_NINJA",
        ),
        title="DS_BUILD_OPS and DS_BUILD_…: operators compiled at installation",
        what="On Linux nothing is compiled at installation by default, but each operator at its first use. "
        "DS_BUILD_OPS=1 compiles all that look compatible; one that does not compile ends the installation. It needs "
        "torch and nvcc of torch's CUDA release, which pip's isolated build does not see, and counts only where pip "
        "builds: a cached wheel is taken as it is.",
        remedy="DS_BUILD_CPU_ADAM=1 (only what is used) pip install deepspeed --no-build-isolation --no-cache-dir "
        "--force-reinstall --no-deps; mostly it is better not to set any of them.",
        beside=("installing", "building", "fails", "how", "windows", "slow", "importing"),
        evidence=("setup.py:BUILD_OP_DEFAULT", "https://www.deepspeed.ai/tutorials/advanced-install/"),
    ),
    Fact(
        id="cutlass_operators",
        names=(
            "DS_BUILD_CUTLASS_OPS",
            "DS_BUILD_RAGGED_DEVICE_OPS",
            "DS_BUILD_RAGGED_OPS",
            "InferenceCutlassBuilder",
            "RaggedOpsBuilder",
            "InferenceCoreBuilder",
            "DS_BUILD_INFERENCE_CORE_OPS",
            "DSKernels",
            "deepspeed_kernels",
        ),
        title="ragged_device_ops, cutlass_ops, inference_core_ops: FastGen's operators only",
        what="They are used by FastGen (inference v2) and by nothing else, and need compute capability 8.0, CUDA 11 "
        "or later and the package deepspeed-kernels (Linux on x86_64). Compiled with DS_BUILD_OPS=1 without these "
        "they end an installation that does not need them.",
        remedy="For training leave them out: DS_BUILD_CUTLASS_OPS=0 DS_BUILD_RAGGED_DEVICE_OPS=0 "
        "DS_BUILD_INFERENCE_CORE_OPS=0. For FastGen: pip install deepspeed-kernels first.",
        evidence=("op_builder.ragged_ops", "op_builder.inference_cutlass_builder"),
    ),
    Fact(
        id="cuda_home_variable",
        names=(
            "CUDA_HOME",
            "CUDA_PATH",
            "deepspeed/ops/op_builder/builder.py:installed_cuda_version",
            "builder.py:installed_cuda_version",
            "installed_cuda_version",
        ),
        title="CUDA_HOME: the toolkit that operators are compiled with",
        what="It has to name a complete toolkit, with bin/nvcc, include and lib64, of the CUDA release that torch was "
        "built for (torch.version.cuda; the same major release suffices from 11 on). The driver's release that "
        "nvidia-smi shows is another thing, and pip's nvidia packages and conda's cudatoolkit have no nvcc.",
        remedy="export CUDA_HOME=/usr/local/cuda-12.x (where nvcc is), or conda install -c nvidia cuda-toolkit "
        "(cuda-nvcc and cuda-cudart-dev) with CUDA_HOME=$CONDA_PREFIX; or a torch for the toolkit that is there.",
        beside=("installing", "building", "fails", "importing", "how", "differs"),
        evidence=(f"{_BUILDER}:installed_cuda_version", f"{_BUILDER}:assert_no_cuda_mismatch"),
    ),
    Fact(
        id="skipping_cuda_check",
        names=(
            "DS_SKIP_CUDA_CHECK",
            "assert_no_cuda_mismatch",
            "deepspeed/ops/op_builder/builder.py:assert_no_cuda_mismatch",
            "builder.py:assert_no_cuda_mismatch",
        ),
        title="DS_SKIP_CUDA_CHECK: another CUDA release than torch's",
        what="nvcc's release and torch.version.cuda may differ in the minor number within CUDA 11 or 12 (those that "
        "the DeepSpeed release lists). DS_SKIP_CUDA_CHECK=1 (value 1) passes over any difference: an operator may "
        "then fail to compile, or crash when it runs. torch's own check refuses another major release all the same.",
        remedy="A toolkit of torch's release in CUDA_HOME. Newer DeepSpeed knows newer CUDA releases.",
        evidence=(f"{_BUILDER}:assert_no_cuda_mismatch",),
    ),
    Fact(
        id="compute_capabilities",
        names=(
            *("TORCH_CUDA_ARCH_LIST", "compute_capability_args", f"{_FRAMES}/builder.py:compute_capability_args"),
            *(f"{_FRAMES}/builder.py:filter_ccs", "cross_compile_archs", "DS_EVOFORMER_GPU_ARCH"),
        ),
        title="TORCH_CUDA_ARCH_LIST: for which GPUs operators are compiled",
        what="It counts for operators that are compiled at installation; at first use those of the visible GPUs are "
        "taken and the variable is ignored. Without it, and without a GPU, a list by the toolkit's release is built, "
        "which may lack a newer GPU. An architecture that nvcc does not know ends the build; 'no kernel image' means "
        "that the GPU's is missing.",
        remedy='TORCH_CUDA_ARCH_LIST="8.0;9.0" at installation, with a toolkit that knows the GPU (9.0: CUDA 11.8, '
        "12.0: CUDA 12.8). Remove ~/.cache/torch_extensions after a change of the GPU.",
        evidence=(f"{_BUILDER}:CUDAOpBuilder.compute_capability_args",),
    ),
    Fact(
        id="compiling_at_first_use",
        names=(
            *(f"{_FRAMES}/builder.py:jit_load", f"{_FRAMES}/builder.py:load", "jit_load"),
            *("torch/utils/cpp_extension.py:_run_ninja_build", "torch/utils/cpp_extension.py:_jit_compile"),
            *("torch/utils/cpp_extension.py:_write_ninja_file_and_build_library", "verify_ninja_availability"),
            *("torch/utils/cpp_extension.py:_import_module_from_library", "torch/utils/cpp_extension.py:load"),
        ),
        title="an operator is compiled at its first use",
        what="It needs ninja, a C++ compiler that fits torch and nvcc, Python's and CUDA's headers, and a CUDA "
        "toolkit of torch's release. The reason is in the compiler's lines above ('FAILED:', 'error:'), often in "
        "another rank's output; the last one only says that the file could not be built or imported. All ranks of a "
        "host build in one directory, and wait for its lock.",
        remedy='Build it once alone: python -c "from deepspeed.ops.op_builder import CPUAdamBuilder as B; B().load()" '
        "(the operator's builder); remove ~/.cache/torch_extensions after a change of torch, CUDA or DeepSpeed.",
        evidence=(f"{_BUILDER}:OpBuilder.jit_load",),
    ),
    Fact(
        id="directory_of_extensions",
        names=("TORCH_EXTENSIONS_DIR", "torch_extensions", "MAX_JOBS"),
        title="where compiled operators are kept",
        what="In ~/.cache/torch_extensions, by Python and CUDA release, or in TORCH_EXTENSIONS_DIR. What an "
        "interrupted build leaves there (a file named lock) lets later jobs wait for ever, and what another release "
        "built is used again. On a network file system ranks of several hosts disturb each other. MAX_JOBS bounds the "
        "compilers.",
        remedy="Remove the directory while no job runs; a local TORCH_EXTENSIONS_DIR per host; MAX_JOBS=2 where the "
        "build is killed for memory.",
        beside=("hang", "fails", "building", "slow", "oom", "how", "start"),
        patches=("extension_cache_shared_by_versions",),
        evidence=("torch.utils.cpp_extension:_get_build_directory",),
    ),
    Fact(
        id="cpu_adam_operator",
        names=(
            "DeepSpeedCPUAdam",
            "CPUAdamBuilder",
            "cpu_adam_op",
            "ds_opt_adam",
            "adamw_mode",
            "deepspeed/ops/adam/cpu_adam.py:__init__",
        ),
        title="DeepSpeedCPUAdam: the optimizer for offload",
        what="It updates parameters that are on the CPU: with offload_optimizer, where DeepSpeed makes it from 'Adam' "
        "or 'AdamW' of the config; without offload it fails on GPU tensors. It is compiled at first use, with OpenMP "
        "and the CPU's vector instructions, and is as fast as OMP_NUM_THREADS and the host's memory allow.",
        remedy="torch.optim.AdamW or FusedAdam without offload. If it does not compile: its compiler's lines; or "
        '"torch_adam": true in the optimizer\'s params (slower).',
        beside=("fails", "building", "installing", "slow", "importing", "differs", "ends", "how"),
        patches=("cpu_adam_del_masks_error",),
        evidence=("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam",),
    ),
    Fact(
        id="cpu_adam_and_speed",
        names=("cpu_adam", "CPUAdam", "DeepSpeedCPUAdam"),
        title="the optimizer on the CPU is slow",
        what="Its step is bound by the host: threads (OMP_NUM_THREADS is 1 under torchrun and accelerate unless it is "
        "set), memory bandwidth that all ranks of the host share, swapping, and vector instructions for which it was "
        "compiled. Where nvcc of torch's CUDA release is missing, older releases build it without its CUDA part, and "
        "the copies to the GPU are slower.",
        remedy="OMP_NUM_THREADS as physical cores by ranks, deepspeed --bind_cores_to_rank; CUDA_HOME with a toolkit "
        "of torch's release; more gradient accumulation, so that there are fewer steps.",
        beside=("slow + offload", "slow + host", "slow + building", "unused + offload"),
        evidence=("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam", "op_builder.cpu_adam"),
    ),
    Fact(
        id="fused_adam_operator",
        names=(
            "FusedAdam",
            "FusedAdamBuilder",
            "multi_tensor_adam",
            "FusedLamb",
            "deepspeed/ops/adam/fused_adam.py:__init__",
        ),
        title="FusedAdam: the optimizer on the GPU",
        what="Type 'Adam' or 'AdamW' in the config becomes FusedAdam unless the optimizer is offloaded; it is "
        "compiled with nvcc at first use. It needs parameters on the GPU. 'Adam' is AdamW unless adam_w_mode is "
        "false.",
        remedy='If it does not compile: "torch_adam": true in the optimizer\'s params, or torch.optim.AdamW given to '
        "initialize.",
        beside=("building + fails", "installing + fails", "importing + fails", "offload + fails", "differs"),
        evidence=("deepspeed.runtime.engine:DeepSpeedEngine._configure_basic_optimizer",),
    ),
    Fact(
        id="async_io_operator",
        names=("AsyncIOBuilder", "aio_handle", "GDSBuilder", "aio_config", "libaio.so", "libaio_dev", "libaio_devel"),
        title="async_io: only for offload to NVMe (and some checkpoint writers)",
        what="It needs libaio with its headers on Linux; a warning about it, or NO in ds_report, does not matter to a "
        "job that does not offload to NVMe. It is probed by compiling and linking a file with libaio.",
        remedy="apt install libaio-dev (conda install -c conda-forge libaio, with CFLAGS=-I$CONDA_PREFIX/include and "
        "LDFLAGS=-L$CONDA_PREFIX/lib); DS_BUILD_AIO=0 where an installation with DS_BUILD_OPS=1 stops at it.",
        beside=("fails", "building", "installing", "how", "importing", "windows"),
        evidence=("op_builder.async_io:AsyncIOBuilder.is_compatible",),
    ),
    Fact(
        id="evoformer_operator",
        names=(
            "EvoformerAttnBuilder",
            "DS4Sci_EvoformerAttention",
            "DS_BUILD_EVOFORMER_ATTN",
            "EvoformerAttention",
            "use_deepspeed_evo_attention",
            "evoformer_attn_op",
            "EvoformerFusedAttention",
        ),
        title="evoformer_attn: needs CUTLASS's headers",
        what="CUTLASS_PATH must name a checkout of NVIDIA's CUTLASS, 3.1 or later, when it is compiled (later "
        "releases look for it), and the GPU needs compute capability 7.0 at least. It takes half or bfloat16, and "
        "more than 16 positions. Nothing but protein models (OpenFold and others) uses it; elsewhere its warning does "
        "not matter.",
        remedy="git clone https://github.com/NVIDIA/cutlass; export CUTLASS_PATH=/path/cutlass before the first use.",
        evidence=("op_builder.evoformer_attn:EvoformerAttnBuilder",),
    ),
    Fact(
        id="what_ds_report_says",
        names=("op_report", "deepspeed/env_report.py:op_report", "is_compatible"),
        title="ds_report: what its table says",
        what="'installed NO' is the normal state: the operator is compiled when it is used. 'compatible NO' means "
        "that a requirement is missing, which matters only if a job uses that operator. At its end are torch's and "
        "nvcc's CUDA releases, which have to agree, and the size of /dev/shm.",
        remedy='Compile what the job uses by its builder: python -c "from deepspeed.ops.op_builder import '
        'FusedAdamBuilder; FusedAdamBuilder().load()".',
        beside=("installing", "building", "how", "windows"),
        evidence=("deepspeed.env_report:op_report",),
    ),
    Fact(
        id="sparse_attention_operator",
        names=(
            "SparseSelfAttention",
            "sparse_attention",
            "SparsityConfig",
            "FixedSparsityConfig",
            "BertSparseSelfAttention",
            "DS_BUILD_SPARSE_ATTN",
            "BigBirdSparsityConfig",
        ),
        title="DeepSpeed's sparse attention: for old Triton only",
        what="It was written for Triton 1.0 and torch 1.x on V100 and A100: with a newer Triton or torch ds_report "
        "calls it not compatible, and its use fails. The config's section sparse_attention changes no model: the "
        "model has to use SparseSelfAttention itself.",
        remedy="torch's flex_attention, or flash-attn with a window; its warning in ds_report or a log does not "
        "matter to other jobs.",
        evidence=("op_builder.sparse_attn:SparseAttnBuilder",),
    ),
    Fact(
        id="transformer_kernel_layer",
        names=(
            "DeepSpeedTransformerLayer",
            "DeepSpeedTransformerConfig",
            "TransformerBuilder",
            "deepspeed_transformer_kernel",
            "stochastic_mode",
        ),
        title="DeepSpeedTransformerLayer: the kernel for training BERT",
        what="An encoder layer of BERT's form in CUDA of 2020, with arguments and a mask of its own. It is used only "
        "where the model, or an injection into it, has it; it is not torch's or transformers' layer with other speed, "
        "and not tested on newer GPUs. stochastic_mode makes two equal runs differ.",
        remedy="scaled_dot_product_attention or flash-attn with the model's own layers.",
        evidence=("deepspeed.ops.transformer.transformer:DeepSpeedTransformerLayer",),
    ),
)
