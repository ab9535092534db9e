"""What the compilation of operators needs: CUDA toolkit, compilers, headers; and building on Windows."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature

_CACHE = "Then remove the operator's directory in ~/.cache/torch_extensions (or TORCH_EXTENSIONS_DIR)."

SIGNATURES = (
    Signature(
        id="cuda_toolkit_of_another_version",
        title="the installed CUDA toolkit is not the version that torch was built for",
        what="An operator (cpu_adam, fused_adam …) is compiled with the toolkit that CUDA_HOME or nvcc names, and its "
        "major version must be torch's.",
        remedy='Install the toolkit of torch\'s version (python -c "import torch; print(torch.version.cuda)") and let '
        "CUDA_HOME name it, or install torch for the toolkit's version. DS_SKIP_CUDA_CHECK=1 (since 0.9.3) skips the "
        "check: it mostly works within one major version.",
        pattern=r"nstalled CUDA version \S+ does not match the\s+version torch was compiled with"
        r"(?![^\n]*(?:accepting this combination|Detected `DS_SKIP))|CUDAMismatchException"
        r"|nstalled CUDA version \S+ does not match (?:the )?torch version"
        r"|The detected CUDA version \(\S+\) mismatches the version",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2902",
            "https://github.com/deepspeedai/DeepSpeed/pull/3436",
        ),
    ),
    Signature(
        id="header_missing",
        title="compiling an operator: a header is missing",
        what="curand_kernel.h, cuda_runtime.h, cublas_v2.h, cusparse.h and the like belong to the CUDA toolkit, of "
        "which only a part is installed; Python.h to Python's headers; libaio.h to libaio; cutlass/… to CUTLASS; "
        "oneapi/ccl.hpp to oneCCL, which only the CPU's operator ccl_comm needs: no GPU was visible, so that DeepSpeed "
        "builds for the CPU.",
        remedy="Install the complete CUDA toolkit of torch's version (conda: cuda-toolkit; or its -dev packages), "
        "python3-dev "
        "for Python.h, libaio-dev for libaio.h; cutlass: CUTLASS_PATH, or git submodule update --init where it is a "
        "submodule; oneapi: DS_ACCELERATOR=cuda, or DS_BUILD_CCL_COMM=0; Windows: the developer prompt of Visual "
        "Studio, whose SDK has "
        f"windows.h. {_CACHE}",
        pattern=r"fatal error: \S+\.(?:h|hpp|cuh): No such file or directory"
        r"|fatal error C1083: Cannot open include file",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1846",),
    ),
    Signature(
        id="compiler_killed",
        title="the compiler was killed: most likely too little memory",
        what="Each compiler process takes some GB, and ninja or setup.py starts one per core.",
        remedy=f"MAX_JOBS=2 (or 1); without DS_BUILD_OPS only the operators that are needed. {_CACHE}",
        pattern=r"Killed signal terminated program \w+",
    ),
    Signature(
        id="compiler_missing",
        title="no C++ compiler, or no ninja, for compiling an operator",
        what="DeepSpeed's operators are compiled on first use by the C++ compiler and ninja.",
        remedy="Install g++ (build-essential) and pip install ninja; CXX names another compiler.",
        pattern=r"\['which', '(?:c\+\+|g\+\+|[\w-]+-(?:c|g)\+\+)'\]|Ninja is required to load C\+\+ extensions"
        r"|Unable to JIT load the \S+ op due to ninja not being installed"
        r"|No supported gcc/g\+\+ host compiler found",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3410",),
    ),
    Signature(
        id="compiler_and_torch",
        title="the compiler does not fit torch or the GPU",
        what="torch's headers need a C++ standard (C++17 since torch 2.1) that the compiler or DeepSpeed's flags do "
        "not give; or nvcc rejects a host compiler that is too new, or does not know a GPU that is newer.",
        remedy='C++14, C++17, "too old version of GCC": a newer g++ (9 or later; CC, CXX, or module load), and a '
        'DeepSpeed not older than torch. "unsupported GNU version": an older g++ (CC, CXX); NVHPC: g++ instead of '
        'nvc++ (CC=gcc CXX=g++). "Unsupported gpu architecture": a newer CUDA toolkit, or '
        f"TORCH_CUDA_ARCH_LIST with what it knows. {_CACHE}",
        pattern=r"You need C\+\+\d\d to compile PyTorch|C\+\+\d\d or later compatible compiler is required"
        r"|Unsupported NVHPC compiler found|unsupported GNU version|[Uu]nsupported gpu architecture"
        r"|with a too old version of GCC|[Nn]eed GCC \d[\d.]* or later"
        r"|unsupported Microsoft Visual Studio version"
        r"|is not defined for option '(?:std|gpu-architecture)'|C\+\+ versions less than 20\d\d are not supported",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4576",),
    ),
    Signature(
        id="async_io_on_windows",
        title="installing DeepSpeed: async_io cannot be compiled (no libaio, as on Windows)",
        what="On Windows, and wherever DS_BUILD_OPS=1, pip compiles operators; async_io needs Linux's libaio. It is "
        "needed for NVMe offload only.",
        remedy="Windows: use WSL 2, or a wheel for Windows; else set DS_BUILD_OPS=0 (or DS_BUILD_AIO=0, and also "
        "DS_BUILD_EVOFORMER_ATTN=0, DS_BUILD_SPARSE_ATTN=0) before pip install. Linux: libaio-dev.",
        pattern=r"Unable to pre-compile async_io",
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/2880",
            "https://github.com/deepspeedai/DeepSpeed/issues/6702",
        ),
    ),
    Signature(
        id="library_probed",
        title="installing DeepSpeed: a library of one operator was not found, which need not be the error",
        what="setup.py tries to link aio and cufile to see whether async_io and gds can be compiled, also where they "
        "are switched off, and prints the linker's message. The error is this one only if `Unable to pre-compile "
        "async_io` follows; otherwise it is further below.",
        remedy="Windows: a wheel, or WSL 2; else DS_BUILD_OPS=0 (or DS_BUILD_AIO=0, DS_BUILD_GDS=0 and what else the "
        "lines below name) before pip install. Linux: libaio-dev.",
        pattern=r"fatal error LNK1181[^\n]*\b(?:aio|cufile)\.lib|open aio\.lib|input file '(?:aio|cufile)\.lib",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6465",),
    ),
    Signature(
        id="operator_not_compatible",
        title="installing DeepSpeed: an operator cannot be compiled here",
        what="DS_BUILD_OPS=1 or DS_BUILD_<operator>=1 asks pip to compile an operator that lacks something here: a "
        "CUDA toolkit, torch, a library, or a GPU that it supports. The warnings next to the message say what.",
        remedy="Install without it (DS_BUILD_OPS=0, or DS_BUILD_<operator>=0): operators are compiled on first use. "
        "async_io (NVMe offload only): apt install libaio-dev, or DS_BUILD_AIO=0.",
        pattern=r"Unable to pre-compile [\w{]\w*|Unable to JIT load the \S+ op due to",
        role=Role.GENERAL,
    ),
    Signature(
        id="cuda_not_visible",
        title="torch sees no GPU",
        what="Most likely: a build of torch without CUDA, a driver that is too old for torch, CUDA_VISIBLE_DEVICES "
        "that is empty, a login node or a container without GPUs. A version mismatch: the driver was "
        "updated, and the machine not started anew. While a package is installed it is only a warning.",
        remedy='python -c "import torch; print(torch.version.cuda, torch.cuda.is_available())"; `python -m dsfix '
        "doctor` compares driver, torch and toolkit.",
        pattern=r"No CUDA runtime is found|Torch not compiled with CUDA enabled|No CUDA GPUs are available"
        r"|Unexpected error from cudaGetDeviceCount|CUDA driver initialization failed|driver/library version mismatch"
        r"|NVIDIA driver on your system is too old|Found no NVIDIA driver|\b0 active drivers \(\[\]\)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1620",),
    ),
    Signature(
        id="libaio_warning",
        title="async_io is not available (only NVMe offload needs it)",
        what="DeepSpeed lists operators that could not be compiled here. The warning about libaio is harmless without "
        "NVMe offload.",
        remedy="NVMe offload: install libaio-dev.",
        pattern=r"async_io requires the dev libaio \.so object and headers",
        role=Role.NOTE,
    ),
    Signature(
        id="nvcc_missing",
        title="CUDA_HOME names a directory without nvcc",
        what="DeepSpeed asks CUDA_HOME/bin/nvcc for its version before it compiles, when it is installed and in "
        "ds_report, from 0.14.1 to 0.19.4 also at import. torch from the package index brings the CUDA runtime without "
        "nvcc; without CUDA_HOME torch guesses: the directory of an nvcc in PATH, or /usr/local/cuda.",
        remedy="Install the CUDA toolkit of torch's version (conda: cuda-toolkit or cuda-nvcc) and let CUDA_HOME name "
        "its directory. If only the import fails: DeepSpeed 0.19.5 or later.",
        pattern=r"No such file or directory: '[^'\n]*/bin/nvcc'|check_output\(\[cuda_home \+ \"/bin/nvcc\"",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3342",),
    ),
    Signature(
        id="torch_missing_at_build",
        title="installing DeepSpeed: its setup does not see torch",
        what="pip and uv build in an environment of their own, in which torch is missing even where it is installed. "
        "This is the error only if operators are to be compiled (DS_BUILD_OPS=1, which is the default on Windows) or "
        "this release's setup.py needs torch; otherwise a warning.",
        remedy="Install torch first, then setuptools, wheel and ninja, then pip install --no-build-isolation deepspeed "
        "(uv: --no-build-isolation-package deepspeed). With DS_BUILD_OPS=0 operators are compiled on first use.",
        pattern=r"[Uu]nable to import torch, (?:pre-compiling ops will be disabled|please install it if you want to)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7286",),
    ),
    Signature(
        id="windows_source_build",
        title="installing DeepSpeed on Windows from source",
        what="On Windows setup.py compiles all operators unless DS_BUILD_OPS=0. It needs torch, the CUDA toolkit and "
        "Visual Studio's compiler, and some operators need what Windows does not have: libaio (async_io), cufile "
        "(gds), dskernels (cutlass_ops, ragged_device_ops). The lines at the end tell which one failed.",
        remedy="A wheel for Windows, if there is one for the Python and the torch; WSL 2; or `set DS_BUILD_OPS=0` "
        "(PowerShell: $env:DS_BUILD_OPS=0) before pip install --no-build-isolation deepspeed.",
        pattern=r"\\deepspeed_[0-9a-f]{32}\\(?:setup\.py|op_builder)",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/4914",
            "https://github.com/deepspeedai/DeepSpeed/issues/5638",
        ),
    ),
    Signature(
        id="windows_symbolic_link",
        title="installing DeepSpeed on Windows: no right to create symbolic links",
        what="Through 0.14.2 setup.py links csrc and op_builder into the package, which Windows allows administrators "
        "only, or in developer mode.",
        remedy="A console as administrator, or Windows' developer mode; or DeepSpeed 0.14.5 or later.",
        pattern=r"symbolic link privilege not held|in create_dir_symlink",
        affects={"deepspeed": "<0.14.3"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1769",),
    ),
    Signature(
        id="windows_source_copied_onto_package",
        title="installing DeepSpeed 0.14.3 or 0.14.4 on Windows fails: they copy csrc onto deepspeed/ops",
        what="setup.py of these two releases copies onto a directory that exists.",
        remedy="Another release, 0.14.5 or later.",
        pattern=r"copytree\('\.\\+csrc', '\.\\+deepspeed\\+ops'\)",
        affects={"deepspeed": ">=0.14.3,<0.14.5"},
        evidence=("https://github.com/shenyunhang/APE/issues/69",),
    ),
    Signature(
        id="windows_compiler_missing",
        title="Windows: Visual Studio's compiler is not found",
        what="Operators are compiled by cl.exe, which is in PATH only in Visual Studio's developer prompt.",
        remedy="Install the Build Tools for Visual Studio (C++), and start from the x64 Native Tools command prompt; "
        "or a wheel for Windows, or WSL 2.",
        pattern=r"Error checking compiler version for cl\b|'cl' is not recognized|Microsoft Visual C\+\+ 14\.\d+ (?:or "
        r"greater )?is required|\['where', 'cl'\]|Could not find (?:the )?MSVC",
        role=Role.GENERAL,
    ),
    Signature(
        id="aio_not_linked",
        title="building async_io or gds: libaio or cufile is not found by the linker",
        what="NVMe offload needs libaio with its headers, GPUDirect Storage CUDA's cufile.",
        remedy="apt install libaio-dev (without root: conda install libaio, and CFLAGS=-I…/include LDFLAGS=-L…/lib); "
        "or without NVMe offload DS_BUILD_AIO=0, DS_BUILD_GDS=0. As a probe of setup.py it is harmless.",
        pattern=r"cannot find -laio|cannot find -lcufile",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="report_of_operators",
        title="ds_report's table of operators",
        what='"installed" [NO] is normal: the operator is compiled on first use. "compatible" [NO] means that it '
        "cannot be compiled here; the warnings say what it lacks.",
        remedy="Only what the job uses must be compatible: fused_adam, cpu_adam with offload, async_io with NVMe.",
        pattern=r"DeepSpeed C\+\+/CUDA extension op report|JIT compiled ops requires ninja",
        role=Role.NOTE,
    ),
    Signature(
        id="libaio_not_seen",
        title="async_io: libaio is installed, and DeepSpeed does not find it",
        what="DeepSpeed compiles and links a small program with -laio by the compiler that this Python was built with, "
        "and says only whether that works. conda's compiler and linker do not search /usr; and the package must be the "
        "one with the header and libaio.so (libaio-dev, libaio-devel; libaio on Arch), on this host. "
        "libaio before 0.3.112 (EL 9, Fedora) lacks io_pgetevents, which async_io calls.",
        remedy="CFLAGS=-I/usr/include LDFLAGS=-L/usr/lib/x86_64-linux-gnu in the environment of the command itself "
        '(with conda: conda install -c conda-forge libaio, and -I, -L of $CONDA_PREFIX). python -c "from '
        "deepspeed.ops.op_builder import AsyncIOBuilder as B; B().has_function('io_submit', ('aio',), verbose=True)\" "
        "shows the compiler's message.",
        pattern=r"even with libaio|libaio(?:-dev|-devel)? (?:is )?(?:already )?installed(?! \(perhaps)|installed libaio"
        r"|\blibaio issue|\blibaio problem|\blibaio on (?:amd|AMD|conda)|\blibaio not found|(?:async_io"
        r"|libaio)[^\n]{0,40}(?:is not compatible|not compatible even)"
        r"|requires libaio-\d",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6972",),
    ),
    Signature(
        id="cufile_not_linked",
        title="libcufile.so: undefined reference: the probe of gds does not link",
        what="setup.py and ds_report try to link a small program with cufile to see whether gds can be compiled. "
        "conda's linker (compiler_compat/ld) does not find the C++ library that cufile needs, and prints this. "
        "dlopen, dlsym, dlvsym, dlclose, dlerror: glibc before 2.34 has them in a library of its own, libdl, which "
        "the probe does not link. Without GPUDirect Storage it is harmless: gds is only not compatible.",
        remedy="Nothing without gds. With it: conda install -c conda-forge gxx_linux-64, or a compiler of the system "
        "(CC, CXX) and LDFLAGS=-lstdc++; for dlopen and the like LDFLAGS=-ldl, or a newer system (glibc 2.34).",
        pattern=r"libcufile\.so[.\d]*: undefined reference to"
        r"|(?:ds_report|GDS|gds|cufile)[^\n]{0,80}undefined references? to (?:\w+, )*`?dl(?:v?sym|open|close|error)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/7432",),
    ),
    Signature(
        id="report_of_cpu_accelerator",
        title="DeepSpeed takes this machine for one without a GPU: it lists the CPU's operators",
        what="Where torch sees no GPU, and no other accelerator's package is there, DeepSpeed uses the CPU: "
        "deepspeed_ccl_comm and deepspeed_shm_comm are the CPU's operators, and fused_adam is compiled for it.",
        remedy='With a GPU: python -c "import torch; print(torch.cuda.is_available())" in the same shell (a node '
        "without a GPU, a driver, a torch for the CPU, CUDA_VISIBLE_DEVICES). Only to install on such a node: "
        "DS_ACCELERATOR=cuda.",
        pattern=r"deepspeed_(?:ccl|shm)_comm ?\.* ?\[|Setting accelerator to CPU\. If you have GPU",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6540",),
    ),
    Signature(
        id="accelerator_named_wrongly",
        title="DS_ACCELERATOR names an accelerator that is not known or whose package is missing",
        what="The variable overrides what DeepSpeed finds: cuda (for ROCm, too), cpu, xpu, npu, hpu, mps, mlu, sdaa "
        "and others by release. xpu, npu, hpu, mlu need torch with or beside intel_extension_for_pytorch, torch_npu, "
        "habana_frameworks, torch_mlu.",
        remedy="Unset DS_ACCELERATOR, or install that package for this torch; AMD GPUs: cuda.",
        pattern=r"DS_ACCELERATOR must be one of|_Accelerator requires \S+, which is not installed"
        r"|XPU_Accelerator requires PyTorch with XPU support",
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.19.5/accelerator/real_accelerator.py",),
    ),
    Signature(
        id="cpu_operators_for_cuda",
        title="an operator is wanted for the CPU, and DeepSpeed builds it for CUDA",
        what="The accelerator is found when DeepSpeed is installed or imported; with a torch for CUDA it may be cuda "
        "although no GPU is used, and fused_adam then needs nvcc.",
        remedy="DS_ACCELERATOR=cpu for the installation and for the job.",
        pattern=r"(?:fused_adam|Fused_adam|Fused_Adam|FusedAdam|fused adam)(?: op)?(?: operator)? (?:on|for) (?:a "
        r"|the )?(?:CPU|cpu)\b",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="installing_fails",
        title="DeepSpeed, or one of its operators, cannot be installed",
        what="pip runs DeepSpeed's setup.py, which needs torch beforehand. Without DS_BUILD_… it compiles nothing on "
        "Linux. Most likely torch is not installed or not visible to pip's isolated build, CUDA_HOME is wrong or "
        "missing (some releases ask nvcc for its version), DS_BUILD_OPS=1 asks for operators that cannot be compiled "
        "here, or it is Windows.",
        remedy="pip install torch setuptools wheel ninja, then pip install --no-build-isolation deepspeed, without "
        "DS_BUILD_…; the first error in its output (pip install -v) tells. Windows: a wheel, or WSL 2. ds_report shows "
        "which operators can be compiled on first use; installed [NO] is normal.",
        pattern=r"(?m)^(?![^\n]{0,300}[Ww]indows)[^\n]{0,200}?(?:"
        + phrases(
            "pip install deepspeed|pip install DeepSpeed|pip3 install deepspeed|install deepspeed|install DeepSpeed"
            "|nstalling deepspeed|nstalling DeepSpeed|nstalling Deepspeed|eepspeed installation|eepSpeed installation",
            ' fail| error| issue| problem| does not work| not work|" fail|` fail',
        )
        + "|"
        + phrases(
            "annot install |an't install |an not install |nable to install |ailed to install |ails to install |rror "
            "installing "
            "|rror when installing |rrors when installing |rror while installing |ail to install |roblem installing "
            "|using pip install |s pip install |with pip install ",
            "deepspeed|DeepSpeed|Deepspeed",
        )
        + "|"
        + phrases("安装|装", "deepspeed|DeepSpeed|Deepspeed", "报错|失败|出错|时报错|不上|不了")
        + "|"
        + phrases("deepspeed|DeepSpeed|Deepspeed", "安装|无法安装|安装不|装不|编译", "失败|报错|出错|上|了|问题")
        + r"|(?:fused_adam|cpu_adam|async_io|transformer_inference|sparse_attn) cannot be installed)",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1982",),
    ),
    Signature(
        id="packaging_of_pkg_resources",
        title="torch's cpp_extension imports packaging from pkg_resources, which setuptools 70 no longer has",
        what="torch before 2.3 does so. pip builds DeepSpeed with the newest setuptools.",
        remedy='pip install "setuptools<70" wheel, then pip install --no-build-isolation deepspeed; or a newer torch.',
        pattern=r"cannot import name 'packaging' from 'pkg_resources'",
    ),
)
