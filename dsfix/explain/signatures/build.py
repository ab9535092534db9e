"""Operators that are compiled on first use."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

_CACHE = "Then remove the operator's directory in ~/.cache/torch_extensions (or TORCH_EXTENSIONS_DIR)."

SIGNATURES = (
    Signature(
        id="cuda_library_not_found",
        title="building an operator: the linker does not find a CUDA library",
        what="The compiler was found, but the CUDA toolkit's libraries are not installed or not in the linker's path. "
        "-L names lib64 of torch's CUDA_HOME (in build.ninja: ldflags); the libraries may be elsewhere (another "
        "toolkit, conda's, pip's nvidia packages). Before 0.14.5 cpu_adam's -lcurand had no -L.",
        remedy="Install the toolkit that matches torch's CUDA version; add its lib64 (or targets/x86_64-linux/lib) to "
        f"LIBRARY_PATH and LD_LIBRARY_PATH, and let CUDA_HOME name it; DeepSpeed 0.14.5 or later. {_CACHE}",
        pattern=r"cannot find -l(curand|cudart|cublas|cusparse|cusolver|cufile)\b"
        r"|(?:[Mm]iss|[Ll]ack|[Ww]ithout)[^\n]{0,80}-L/usr/local/cuda|"
        + phrases("missing the |missing ", "necessary ldflags|ldflags"),
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/3929",
            "https://github.com/deepspeedai/DeepSpeed/issues/7174",
            *pull(5780),
        ),
    ),
    Signature(
        id="extension_build_failed",
        title="a C++ or CUDA extension could not be compiled (of DeepSpeed: an operator)",
        what='The compiler\'s message is above this line, at the first "error:". Most likely nvcc, the host compiler '
        "and torch do not fit each other, a header or a library is missing, or the memory is full.",
        remedy=f"Look for that error. {_CACHE}",
        pattern=r"Error building extension '\w+'|FAILED: \S+\.o\b|ninja: build stopped"
        r"|Error compiling objects for extension"
        r"|Command '\['ninja', '-v'|Error [Bb]uilding [Ff]used_?[Aa]dam|Error [Bb]uilding [Cc][Pp][Uu]_?[Aa]dam"
        r"|cannot build '\w+'|error: command '[^'\n]*(?:nvcc|gcc|g\+\+|clang|cl|link)(?:\.exe)?' failed|ptxas fatal ",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/889",),
    ),
    Signature(
        id="cuda_home_missing",
        title="CUDA_HOME is not set, and no CUDA toolkit is found",
        what="torch from PyPI includes the CUDA runtime, but not the compiler that an operator needs. From 0.14.1 to "
        "0.19.4 even `import deepspeed` requires it on a machine with a GPU. On an AMD machine (ROCm): torch is a "
        "build for CUDA or for the CPU, or pip's isolated build uses such a one, so that DeepSpeed takes it for CUDA.",
        remedy="NVIDIA: install the CUDA toolkit, if there is none, and let CUDA_HOME name its directory. AMD: "
        "install torch for ROCm (torch.version.hip is set), then deepspeed with --no-build-isolation and without "
        "DS_BUILD_OPS=1; the CUDA toolkit does not help. If only the import fails: DeepSpeed 0.19.5 or later.",
        pattern=r"CUDA_HOME does not exist, unable to compile|CUDA_HOME environment variable is not set"
        r"|nvcc: command not found|in installed_cuda_version\n\s+assert cuda_home\b"
        r"|Unable to run \S+nvcc, unable to compile"
        r"|\bnvcc missing|\bnvcc not found|\bnvcc is not (?:found|installed)|nvcc install issue",
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
        pattern=r"\.so[.\d]*: undefined symbol: |undefined symbol:? {0,2}[`'\"*]{0,2}_ZNK?(?:2at|3c10|5torch)\d",
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
        pattern=r"(?:torch_extensions/\S+|\b(?:cpu|fused)_(?:adam|adagrad|lamb|lion)|\btransformer_inference|\basync_io"
        r"|/utils|\bquantizer|\brandom_ltd)\.so: cannot open shared object file"
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
        # interrupted while waiting
        pattern=r"torch/utils/file_baton\.py",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4443",),
    ),
    Signature(
        id="ends_at_extensions",
        title="the log ends where an operator is compiled or loaded",
        what="Most likely the job waits for a lock: a process that builds an operator creates a file named lock, and a "
        "killed one leaves it there. Otherwise the compiler is still at work (some minutes), or the log does not show "
        "the error.",
        remedy="If no process is building (ps): remove the files named lock in ~/.cache/torch_extensions (or "
        "TORCH_EXTENSIONS_DIR). Use one directory per DeepSpeed release.",
        pattern=r"Using \S+ as PyTorch extensions root\.\.\.\s*\x04",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeedExamples/issues/842",),
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
    Signature(
        id="built_for_rocm",
        title="an operator does not compile for ROCm",
        what="DeepSpeed's kernels are written for CUDA and converted by hipify. Not all of them compile for each ROCm "
        "and GPU: quantizer, random_ltd, the inference and sparse attention operators least; wavefronts of 32 "
        "(gfx10…, gfx11…) are not what some expect, and an include that was not converted asks for CUDA's headers.",
        remedy="Without DS_BUILD_OPS=1: only the operators that the job uses are then compiled, on first use; or "
        "DS_BUILD_<operator>=0 for the one that fails. A current DeepSpeed, which follows ROCm's changes; "
        "PYTORCH_ROCM_ARCH=the GPU's gfx name.",
        pattern=r"\.hip:\d+:\d+: note: expanded|/opt/rocm\S*: error: "
        r"|/opt/rocm[^\n]*: error: |failed to execute:/opt/rocm"
        r"|(?:ROCm|ROCM|rocm|AMD Rocm)[^\n]{0,40} but fails to build"
        r"|"
        + phrases(
            "uild |uilding |ompilation |ompile ",
            "issues|issue|errors|error|fails|failure",
            " on | with | for ",
            "ROC[mM]",
        ),
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4552",),
    ),
    Signature(
        id="rocm_and_cuda_header",
        title="ROCm: CUDA's header cuda_runtime_api.h is asked for",
        what="An operator's source was compiled without being converted by hipify, so that torch's header includes "
        "that of CUDA, which is not there.",
        remedy="Without DS_BUILD_OPS=1, or DS_BUILD_<operator>=0 for that operator; a current DeepSpeed and the torch "
        "for ROCm; the CUDA toolkit does not help.",
        pattern=r"(?:rocm|ROCm|ROCM)[\s\S]{0,2000}cuda_runtime(?:_api)?\.h'? file not found"
        r"|cuda_runtime(?:_api)?\.h'? file not found[\s\S]{0,2000}(?:rocm|ROCm|ROCM)",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3304",),
    ),
    Signature(
        id="gds_without_toolkit",
        title="installing DeepSpeed 0.15.0: gds.py fails without a CUDA toolkit",
        what="0.15.0 joins a path to CUDA_HOME, which is None without a CUDA toolkit and on ROCm.",
        remedy="DeepSpeed 0.15.1 or later; 0.14.5.",
        pattern=r"op_builder[/\\]gds\.py[\s\S]{0,300}os\.path\.join\(CUDA_HOME, \"lib64\"\)",
        affects={"deepspeed": "==0.15.0"},
        evidence=pull(6456),
    ),
    Signature(
        id="evoformer_not_built",
        title="the evoformer attention's operator is not built",
        what="It is compiled on first use with CUTLASS 3.1 or later, which DeepSpeed does not contain: through 0.19.0 "
        "CUTLASS_PATH must name a checkout. It needs nvcc of torch's CUDA and a GPU from compute capability 7.0 on, "
        "and does not exist for ROCm. A missing evoformer_attn.so means that the compiler failed before.",
        remedy="git clone https://github.com/NVIDIA/cutlass; CUTLASS_PATH=its directory; remove "
        "~/.cache/torch_extensions/*/evoformer_attn and look at the first error. Models (OpenFold, Protenix): the "
        "option that switches DeepSpeed's attention off (use_deepspeed_evo_attention: false).",
        pattern=r"evoformer_attn[^\n]{0,60}(?:\.so\b|fail|error|not)|(?:building"
        r"|Building) (?:extension module )?evoformer"
        r"|[Ee]voformer (?:compilation|build|kernel)|EvoFormer test|EvoformerAttention should|CUTLASS for Evoformer"
        r"|CUTLASS_PATH environment variable is not set"
        r"|(?<!\[WARNING\]  Please )(?<!\[WARNING\] Please )specify (?:the )?CUTLASS (?:repo"
        r"|location) directory as environment "
        r"variable[^\n]*(?!\n)",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/pull/7760",
            "https://github.com/deepspeedai/DeepSpeed/pull/8000",
        ),
    ),
    Signature(
        id="compiled_operator_missing",
        title="an operator that was compiled at installation is not there",
        what="This DeepSpeed was told that it contains the operator (an installation with DS_BUILD_…, or a working "
        "copy of its source in the path), and the compiled module is missing: built for another Python, left out of "
        "the wheel, or the job runs in the directory of the source. DeepSpeed 0.3.0 compiles while installing only, "
        "and was installed without.",
        remedy="Run in another directory than DeepSpeed's source; pip install --force-reinstall --no-deps "
        "--no-cache-dir deepspeed without DS_BUILD_…: the operator is then compiled on first use (0.3.1 and later).",
        pattern=r"No module named '?deepspeed\.ops\.[\w.]*_op\b(?!_)",
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.19.5/op_builder/builder.py",),
    ),
    Signature(
        id="cut_while_building",
        title="an error while an operator is built or loaded; its message is not in the log",
        what="It cannot be told without the message. Seen here: the compiler's error, above this traceback or in "
        "another rank's output: a CUDA toolkit of another version than torch's, no nvcc, no ninja or g++; or the "
        "compiled module does not fit (undefined symbol, libstdc++), left by another torch.",
        remedy=f"The last line of the traceback tells; ds_report; `python -m dsfix doctor`. {_CACHE}",
        pattern=r"op_builder/builder\.py\", line \d+, in (?:load|jit_load)\b(?![\s\S]*\w(?:Error|Exception"
        r"|Interrupt)\b)",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/transformers/issues/24438",),
    ),
    Signature(
        id="extension_of_early_release",
        title="a compiled module of an early DeepSpeed is not there",
        what="Before 0.3 the operators were modules of their own (deepspeed_lamb_cuda, deepspeed_transformer_cuda), "
        "made while installing. Most likely Python imports the source folder (the current directory), where they are "
        "not, or they were not built.",
        remedy="Start in another directory; a newer DeepSpeed, which compiles operators on first use.",
        pattern=r"No module named '?deepspeed_\w+_cuda",
    ),
)
