"""What errors of a kind usually mean, for messages that nothing else recognises."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="module_not_installed",
        title="a module is not installed in this environment",
        what="The Python that runs the job does not find it: not installed, installed for another Python, or (a "
        "module of the project itself) the job was started in another directory. For a submodule: the installed "
        "release of the package does not have it.",
        remedy="python -m pip install the package, with the job's python; for a module of the project PYTHONPATH or "
        "its directory.",
        pattern=r"ModuleNotFoundError: No module named",
        role=Role.FAMILY,
    ),
    Signature(
        id="name_not_in_package",
        title="a package does not have a name that another one imports",
        what="The installed releases of the two packages do not fit each other; the name was added later, or removed. "
        '"partially '
        'initialized module": most likely a file of the project has the name of the package.',
        remedy="Upgrade the package that imports, or install the release of the other one that it requires (its "
        "requirements file).",
        pattern=r"ImportError: cannot import name '|module '[\w.]+' has no attribute '",
        role=Role.FAMILY,
    ),
    Signature(
        id="shared_library_missing",
        title="a shared library is not found",
        what="A compiled module needs a library of another CUDA version (libcudart.so.11.0, libcusparse.so.12), or "
        "one of the system that is not installed or not in the linker's path.",
        remedy="Reinstall the compiled package for torch's CUDA version; or add the directory of the library to "
        "LD_LIBRARY_PATH. GLIBC or GLIBCXX: a newer libstdc++ (conda install libstdcxx-ng) or a wheel for this system.",
        pattern=r"cannot open shared object file|version `GLIBC(?:XX)?_[\d.]+' not found",
        role=Role.FAMILY,
    ),
    Signature(
        id="argument_missing",
        title="an argument is missing",
        what="The caller was written for another release of the function; or, for a scheduler or an optimizer that a "
        "config names, its params lack one (total_num_steps of WarmupDecayLR, cycle_min_lr of OneCycle).",
        remedy="Releases that fit each other; for a config add the key: `python -m dsfix check CONFIG`.",
        pattern=r"TypeError: [^\n]*missing \d+ required (?:positional|keyword-only) argument",
        role=Role.FAMILY,
    ),
    Signature(
        id="no_permission",
        title="a file or directory may not be written or read",
        what="In containers and on clusters most likely a cache in a home directory that belongs to another user or "
        "is read-only (~/.cache, ~/.triton), or an output directory of another user.",
        remedy="HF_HOME, TRITON_CACHE_DIR, TORCH_EXTENSIONS_DIR, TMPDIR in a directory of your own.",
        pattern=r"PermissionError: \[Errno 13\]|Read-only file system",
        role=Role.FAMILY,
    ),
    Signature(
        id="json_invalid",
        title="a JSON file is invalid or empty",
        what="Most likely the DeepSpeed config has a comma too many, a comment or another syntax error, or a file was "
        "saved incompletely (trainer_state.json, an index of weights).",
        remedy="`python -m dsfix check CONFIG` names the line of a config; `python -m json.tool FILE` that of any "
        "file.",
        pattern=r"JSONDecodeError: |Expecting value: line \d+ column",
        role=Role.FAMILY,
    ),
    Signature(
        id="devices_differ",
        title="tensors on different devices",
        what="Two GPUs: most likely device_map. A GPU and the CPU: inputs or a buffer that were not moved, a module "
        "that the engine does not know, offloaded parameters that are used outside of their hooks, or a bug of "
        "DeepSpeed's offload (0.14.1, 0.14.2).",
        remedy="No device_map; inputs .to(engine.device); modules registered before deepspeed.initialize; another "
        "release if the traceback ends in deepspeed/runtime/zero.",
        pattern=r"Expected all tensors to be on the same device",
        role=Role.FAMILY,
    ),
    Signature(
        id="file_not_found",
        title="a file does not exist",
        what="A path is relative to another directory, or exists on another host only; nvcc: CUDA_HOME names a "
        "directory without the toolkit's compiler.",
        remedy="Absolute paths; the same files on every host; for nvcc install the toolkit or correct CUDA_HOME.",
        pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory(?!: '\S*\.triton)",
        role=Role.FAMILY,
    ),
    Signature(
        id="cuda_error",
        title="an error of CUDA that is reported late",
        what="Kernels run asynchronously: the traceback may point to a later line. Most likely an index out of range, "
        "memory that is full, a compiled module that does not fit torch or the GPU, or a fault of the GPU "
        "(`nvidia-smi`, `dmesg`: Xid).",
        remedy="CUDA_LAUNCH_BLOCKING=1 names the line.",
        pattern=r"RuntimeError: CUDA error: |torch\.AcceleratorError: CUDA error"
        r"|CUDA kernel errors might be asynchronously reported",
        role=Role.FAMILY,
    ),
    Signature(
        id="assertion_of_swapping",
        title="offloading parameters: a parameter is swapped in twice",
        what="NVMe offload of parameters met one that is still in use: gradient checkpointing or a second use of a "
        "module in one pass.",
        remedy="offload_param to the CPU instead of NVMe; no gradient checkpointing; a current DeepSpeed.",
        pattern=r"already assigned swap buffer|already assigned swap in buffer",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4072",),
    ),
)
