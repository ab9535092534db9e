"""Operators that are compiled on first use."""

from __future__ import annotations

from ..signature import Role, Signature, pull

_CACHE = "Then remove the operator's directory in ~/.cache/torch_extensions (or TORCH_EXTENSIONS_DIR)."

SIGNATURES = (
    Signature(
        id="cuda_library_not_found",
        title="building an operator: the linker does not find a CUDA library",
        what="The compiler was found, but the CUDA toolkit's libraries are not installed or not in the linker's path.",
        remedy="Install the toolkit that matches torch's CUDA version; add its lib64 (or targets/x86_64-linux/lib) to "
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
        what='The compiler\'s message is above this line, at the first "error:".',
        remedy=f"Fix the compiler error: nvcc and the host compiler must match each other and torch. {_CACHE}",
        pattern=r"Error building extension '\w+'|FAILED: \S+\.o\b|ninja: build stopped"
        r"|Error compiling objects for extension"
        r"|Command '\['ninja', '-v'|Error [Bb]uilding [Ff]used_?[Aa]dam|Error [Bb]uilding [Cc][Pp][Uu]_?[Aa]dam"
        r"|cannot build '\w+'|error: command '[^'\n]*(?:nvcc|gcc|g\+\+|clang|cl|link)(?:\.exe)?' failed|ptxas fatal ",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/889",),
    ),
    Signature(
        id="cuda_home_missing",
        title="no CUDA toolkit: CUDA_HOME does not exist",
        what="torch from PyPI includes the CUDA runtime, but not the compiler that an operator needs. From 0.14.1 to "
        "0.19.4 even `import deepspeed` requires it on a machine with a GPU. On an AMD machine (ROCm): torch is a "
        "build "
        "for CUDA or for the CPU, or pip's isolated build uses such a one, so that DeepSpeed takes it for CUDA.",
        remedy="NVIDIA: install the CUDA toolkit and set CUDA_HOME. AMD: install torch for ROCm (torch.version.hip is "
        "set), then deepspeed with --no-build-isolation and without DS_BUILD_OPS=1; the CUDA toolkit does not help. If "
        "only the import fails: DeepSpeed 0.19.5 or later.",
        pattern=r"CUDA_HOME does not exist, unable to compile|CUDA_HOME environment variable is not set"
        r"|nvcc: command not found",
        patches=("op_probe_breaks_import",),
    ),
    Signature(
        id="optimizer_del_masks_error",
        title="no attribute 'ds_opt_adam' (ds_opt_adagrad, ds_opt_lion): the error above it is the cause",
        what="The optimizer's constructor failed; this error comes from deleting the incomplete object. Most likely "
        "its operator could not be built or loaded (no CUDA toolkit, compiler or ninja, another CUDA than torch's); "
        "or torch refused its arguments (an empty parameter list: no parameter of this group or rank requires a "
        "gradient).",
        remedy="See the first error above it. If it is not in this log: `python -m dsfix doctor` finds what is "
        'missing for building; python -c "import deepspeed; deepspeed.ops.op_builder.CPUAdamBuilder().load()" shows '
        "the error.",
        patches=("cpu_adam_del_masks_error",),
        role=Role.FOLLOW_UP,
    ),
    Signature(
        id="extension_of_another_version",
        title="an operator built by another DeepSpeed release or for another torch is loaded",
        what="All releases build into the same directory. An operator left there by another release lacks what this "
        "one needs: an undefined symbol, or 'vector_kernel_level', which 0.19.8 uses.",
        remedy="Remove the operator's directory in ~/.cache/torch_extensions, or use one directory per release: "
        "TORCH_EXTENSIONS_DIR.",
        patches=("extension_cache_shared_by_versions",),
    ),
    Signature(
        id="curand_not_linked",
        title="an operator was linked without curand",
        what="An operator that was built with DeepSpeed (DS_BUILD_…=1) or earlier does not know libcurand: the "
        "toolkit at build time had no libcurand, or the release did not pass -lcurand for this operator.",
        remedy="Install the CUDA toolkit's curand, reinstall DeepSpeed without DS_BUILD_… (pip install "
        "--force-reinstall "
        f"--no-cache-dir deepspeed) and let it compile on first use. {_CACHE} Loading the library first also helps: "
        "LD_PRELOAD=…/libcurand.so.",
        pattern=r"undefined symbol:? *[`'\"]?curand",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/1846",
            "https://github.com/deepspeedai/DeepSpeed/pull/3846",
            "https://github.com/pytorch/pytorch/issues/69666",
        ),
    ),
    Signature(
        id="undefined_symbol",
        title="undefined symbol: a compiled module does not fit the installed torch or CUDA",
        what="It was compiled for another torch (symbols that begin with _ZN2at, _ZN3c10 or _ZN5torch) or another CUDA "
        "library than the one that is loaded: after an upgrade of torch, or from a wheel for another one.",
        remedy="Reinstall the package whose .so the message names, for the installed torch (pip install "
        "--force-reinstall "
        f"--no-cache-dir --no-build-isolation). An operator of DeepSpeed: the same without DS_BUILD_…. {_CACHE}",
        pattern=r"\.so[.\d]*: undefined symbol: ",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3410",),
    ),
    Signature(
        id="extension_not_built",
        title="the compiled operator is missing: building it failed earlier, or in another process",
        what="torch loads the operator that this or another rank should have built, and there is none: the compiler's "
        "error is above or in another rank's output. Also after a build that was interrupted, and with several nodes "
        "on one home directory.",
        remedy=f'Look for the first "error:" or "FAILED:" of any rank. {_CACHE} `python -m dsfix doctor` examines the '
        "toolchain. Build once in a single process before the job starts.",
        pattern=r"torch_extensions/\S+\.so: cannot open shared object file"
        r"|dynamic module does not define module export function"
        r"|No module named '(?:cpu_adam|fused_adam|cpu_adagrad|transformer_inference)'",
        role=Role.GENERAL,
        evidence=pull(5780),
    ),
    Signature(
        id="extension_lock",
        title="the job waits for a lock in the directory of compiled operators",
        what="A process that builds an operator creates a file named lock; a killed process left it there, and all "
        "others wait for it forever.",
        remedy="If no process is building: remove the files named lock in ~/.cache/torch_extensions "
        "(or TORCH_EXTENSIONS_DIR). Use one directory per DeepSpeed release.",
        # interrupted while waiting, or the log ends there
        pattern=r"torch/utils/file_baton\.py|Using \S+ as PyTorch extensions root\.\.\.\s*\x04",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4443",),
    ),
    Signature(
        id="triton_autotune_directory",
        title="Triton's autotune directory is missing or on a network file system",
        what="DeepSpeed looks for Triton's autotune cache on import and writes it when the job ends. The message of df "
        "is harmless; an error or a hang at the end of the job is caused by it.",
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
