"""DeepSpeed's operators: how they are compiled, and the ones that people meet."""

from __future__ import annotations

from ..fact import Fact

_BUILDER = "op_builder.builder"

FACTS = (
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
        what="They are used by FastGen (inference v2) and by nothing else. The first two are compiled for compute "
        "capability 8.0 or later only, and need the package deepspeed-kernels (Linux on x86_64). Compiled with "
        "DS_BUILD_OPS=1 without these they end an installation that does not need them.",
        remedy="For training leave them out: DS_BUILD_CUTLASS_OPS=0 DS_BUILD_RAGGED_DEVICE_OPS=0 "
        "DS_BUILD_INFERENCE_CORE_OPS=0. For FastGen: pip install deepspeed-kernels first.",
        evidence=("op_builder.ragged_ops", "op_builder.inference_cutlass_builder"),
    ),
    Fact(
        id="compiling_at_first_use",
        names=(
            *("torch/utils/cpp_extension.py:_run_ninja_build", "torch/utils/cpp_extension.py:_jit_compile"),
            *("torch/utils/cpp_extension.py:_write_ninja_file_and_build_library", "verify_ninja_availability"),
            *("torch/utils/cpp_extension.py:_import_module_from_library", "torch/utils/cpp_extension.py:load"),
        ),
        title="torch compiles an operator at its first use, or loads what it compiled",
        what="In _run_ninja_build the compiler failed: the reason is in its lines above ('FAILED:', 'error:'), mostly "
        "a missing header or library, nvcc and C++ compiler that do not fit each other, or no memory (Killed). In "
        "_import_module_from_library the file is missing, because another rank's build failed, or does not fit this "
        "torch (undefined symbol). All ranks of a host use one directory and wait for its lock.",
        remedy='Build it once alone: python -c "from deepspeed.ops.op_builder import CPUAdamBuilder as B; B().load()" '
        "(the operator's builder), after removing ~/.cache/torch_extensions.",
        evidence=("torch.utils.cpp_extension:_jit_compile", f"{_BUILDER}:OpBuilder.jit_load"),
    ),
    Fact(
        id="cpu_adam_operator",
        names=("cpu_adam_op", "ds_opt_adam"),
        title="ds_opt_adam, cpu_adam_op: DeepSpeedCPUAdam's operator could not be loaded",
        what="The exception about the attribute ds_opt_adam comes from __del__ (through 0.19.7), after the error of "
        "__init__, above it: the operator cpu_adam did not compile, or a file that was compiled for another torch, "
        "CUDA or CPU was found. It is needed only with offload_optimizer.",
        remedy='The first error above; remove ~/.cache/torch_extensions; or "torch_adam": true in the optimizer\'s '
        "params (slower).",
        patches=("cpu_adam_del_masks_error",),
        evidence=("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam",),
    ),
    Fact(
        id="cpu_adam_and_speed",
        names=("cpu_adam", "CPUAdam", "DeepSpeedCPUAdam"),
        title="the optimizer on the CPU is slow",
        what="Its step is bound by the host: threads (OMP_NUM_THREADS is 1 under torchrun and accelerate unless it is "
        "set), memory bandwidth that all ranks of the host share, swapping, and vector instructions for which it was "
        "compiled.",
        remedy="OMP_NUM_THREADS as physical cores by ranks, or deepspeed --bind_cores_to_rank; more gradient "
        "accumulation, so that there are fewer steps.",
        beside=("slow + offload", "slow + host", "unused + offload"),
        evidence=("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam", "torch.distributed.run:config_from_args"),
    ),
    Fact(
        id="async_io_operator",
        names=("AsyncIOBuilder", "aio_handle", "libaio.so", "libaio_dev", "libaio_devel"),
        title="async_io: only for offload to NVMe (and some checkpoint writers)",
        what="It needs libaio with its headers on Linux; a warning about it, or NO in ds_report, does not matter to a "
        "job that does not offload to NVMe. It is probed by compiling and linking a file with libaio, with CFLAGS and "
        "LDFLAGS; compiling at first use does not take these.",
        remedy="apt install libaio-dev. Without root: libaio in a prefix of its own (conda-forge has it), its include "
        "and lib directories in CFLAGS and LDFLAGS (-I, -L) and in CPATH and LIBRARY_PATH; DS_BUILD_AIO=0 where an "
        "installation with DS_BUILD_OPS=1 stops at it.",
        beside=("fails", "building", "installing", "how", "importing", "windows"),
        evidence=("op_builder.async_io:AsyncIOBuilder.is_compatible", f"{_BUILDER}:OpBuilder.has_function"),
    ),
    Fact(
        id="evoformer_operator",
        names=(
            *("EvoformerAttnBuilder", "DS4Sci_EvoformerAttention", "DS_BUILD_EVOFORMER_ATTN", "EvoformerAttention"),
            *("use_deepspeed_evo_attention", "evoformer_attn_op", "EvoformerFusedAttention", "CUTLASS_PATH"),
            "DS_EVOFORMER_GPU_ARCH",
        ),
        title="evoformer_attn: needs CUTLASS's headers",
        what="It is compiled at first use with CUTLASS's headers (3.1 or later), which DeepSpeed does not contain: "
        "through 0.19.0 CUTLASS_PATH must name a checkout, later releases also look for one. It needs compute "
        "capability 7.0 and sequences longer than 16. Compiling takes minutes; after a failed one the file "
        "evoformer_attn.so is missing. DS_EVOFORMER_GPU_ARCH counts in 0.18.5 to 0.18.7 only.",
        remedy="git clone https://github.com/NVIDIA/cutlass; export CUTLASS_PATH=/path/cutlass; remove "
        "~/.cache/torch_extensions. Only protein models (OpenFold and others) use it: elsewhere its warning does not "
        "matter.",
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
            *("SparseSelfAttention", "sparse_attention", "SparsityConfig", "FixedSparsityConfig", "sparse_attn"),
            *("BertSparseSelfAttention", "DS_BUILD_SPARSE_ATTN", "BigBirdSparsityConfig"),
        ),
        title="DeepSpeed's sparse attention: for torch 1 and Triton 1.0.0, removed in 0.19.7",
        what="Its operator needs torch 1.5 to 1.13, Triton 1.0.0 and CUDA: elsewhere ds_report calls it not "
        "compatible, and its use fails. The config's section sparse_attention changes no model, the model has to use "
        "SparseSelfAttention itself; from 0.19.7 on the section is refused.",
        remedy="torch's flex_attention, or flash-attn with a window. Its warning in ds_report or a log does not "
        "matter to other jobs.",
        evidence=("op_builder.sparse_attn:SparseAttnBuilder", "deepspeed.runtime.config"),
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
        what="An encoder layer of BERT's form as a CUDA operator, with arguments and a mask of its own. It is used "
        "only where the model, or an injection into it, has it. stochastic_mode makes two equal runs differ.",
        remedy="scaled_dot_product_attention or flash-attn with the model's own layers.",
        evidence=("deepspeed.ops.transformer.transformer:DeepSpeedTransformerLayer",),
    ),
)
