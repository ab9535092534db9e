"""Operators that are compiled when a job needs them."""

from __future__ import annotations

from ..signature import Role, Signature

_CACHE = "Then remove the operator's directory below ~/.cache/torch_extensions (or TORCH_EXTENSIONS_DIR)."

SIGNATURES = (
    Signature(
        id="cuda_library_not_found",
        title="building an operator: the linker does not find a CUDA library",
        what="The compiler is there, the CUDA toolkit's libraries are not where the linker looks, or are not "
        "installed.",
        remedy="Install the toolkit that fits torch's CUDA; put its lib64 (or targets/x86_64-linux/lib) into "
        f"LIBRARY_PATH and LD_LIBRARY_PATH. {_CACHE}",
        pattern=r"cannot find -l(curand|cudart|cublas|cusparse|cusolver|cufile)\b",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/3929",
            "https://github.com/deepspeedai/DeepSpeed/issues/7174",
        ),
    ),
    Signature(
        id="extension_build_failed",
        title="an operator of DeepSpeed could not be built",
        what='The compiler\'s own words stand above this line, at the first "error:".',
        remedy=f"Cure what the compiler says: nvcc and the host compiler have to fit each other and torch. {_CACHE}",
        pattern=r"Error building extension '\w+'",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/889",),
    ),
    Signature(
        id="cuda_home_missing",
        title="no CUDA toolkit: CUDA_HOME does not exist",
        what="torch from the package index brings the CUDA runtime, not the compiler that an operator needs. From "
        "0.14.1 to 0.19.4 already `import deepspeed` asks for it on a machine with a GPU.",
        remedy="Install the CUDA toolkit and set CUDA_HOME. If only the import fails: DeepSpeed 0.19.5 or newer.",
        pattern=r"CUDA_HOME does not exist, unable to compile",
        patches=("op_probe_breaks_import",),
    ),
    Signature(
        id="optimizer_del_masks_error",
        title="no attribute 'ds_opt_adam' (ds_opt_adagrad, ds_opt_lion): the error above it is the cause",
        what="The optimizer's operator could not be built or loaded; this is only its half-made object being removed.",
        remedy="Look at the error above it.",
        patches=("cpu_adam_del_masks_error",),
        role=Role.FOLLOW_UP,
    ),
    Signature(
        id="extension_of_another_version",
        title="an operator that another release of DeepSpeed, or for another torch, has built is loaded",
        what="All releases build into the same directory. What another one left there lacks what this one calls: an "
        "undefined symbol, or 'vector_kernel_level', which 0.19.8 asks for.",
        remedy="Remove the operator's directory below ~/.cache/torch_extensions, or give each release its own: "
        "TORCH_EXTENSIONS_DIR.",
        patches=("extension_cache_shared_by_versions",),
    ),
    Signature(
        id="extension_lock",
        title="the job waits for a lock in the directory of compiled operators",
        what="A process that builds an operator holds a file named lock; one that was killed has left it there, and "
        "everybody waits for it without an end.",
        remedy="If no process is building: remove the files named lock below ~/.cache/torch_extensions "
        "(or TORCH_EXTENSIONS_DIR). Give each release of DeepSpeed its own directory.",
        # interrupted while waiting, or the log ends there
        pattern=r"torch/utils/file_baton\.py|Using \S+ as PyTorch extensions root\.\.\.\s*\x04",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4443",),
    ),
    Signature(
        id="triton_autotune_directory",
        title="Triton's autotune directory is missing or on a network file system",
        what="DeepSpeed looks for a cache of Triton's when it is imported, and writes it when the job ends. A message "
        "of df is harmless; an error or a hang at the end of the job comes from there.",
        remedy="TRITON_CACHE_DIR=/a/directory/on/a/local/disk.",
        pattern=r"df: [^\n]*\.triton/autotune|matmul_ext_update_autotune_table",
        affects={"deepspeed": ">=0.12.0"},
        role=Role.NOTE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/7642",
            "https://github.com/deepspeedai/DeepSpeed/issues/4060",
        ),
    ),
)
