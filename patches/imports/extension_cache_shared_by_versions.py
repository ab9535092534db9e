"""Operators that DeepSpeed compiles at run time are cached in one directory for all versions of DeepSpeed and torch.

Why: torch caches operators below ~/.cache/torch_extensions in one directory per Python and CUDA version, whatever
    DeepSpeed and torch they were compiled for. Command lines and file times decide whether an operator is recompiled.
    An upgrade that preserves old times (conda, uv) keeps the old one in use: "undefined symbol", a missing attribute,
    or silently old code. Two environments used in turn overwrite each other's operators, even under a running job, and
    a process that is killed while compiling leaves a lock on which all others wait.
How: a separate directory for each combination of Python, CUDA or ROCm, torch and DeepSpeed, next to torch's; the
    environment is unchanged. Torch's directory stays in use if TORCH_EXTENSIONS_DIR is set, for operators that an image
    ships for exactly this torch and DeepSpeed, without a compiler, and, after one warning, if the separate directory
    fails. The first run compiles what is missing there; old directories may be deleted.
Workaround: Each environment sets its own TORCH_EXTENSIONS_DIR, or ~/.cache/torch_extensions is deleted after an
    upgrade. You can keep it.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BUILDER = "deepspeed.ops.op_builder.builder:OpBuilder"
_IMPORT = "from torch.utils.cpp_extension import load"


def load_in_own_directory(load: Any) -> Any:
    """torch's `load` with a directory for these versions, or `load` itself where the user has chosen one."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return load

    def load_there(*args: Any, **options: Any) -> Any:
        name = options.get("name")
        if name is None or options.get("build_directory") is not None:
            return load(*args, **options)
        own, torchs = _directories(name)
        if not os.path.exists(_library(own)) and (not _has_compiler() or _is_of_these(torchs)):
            return load(*args, **options)
        from torch.utils.cpp_extension import JIT_EXTENSION_VERSIONER

        entries = JIT_EXTENSION_VERSIONER.entries
        known = entries.get(name)
        try:
            os.makedirs(own, exist_ok=True)
            ran(__name__)
            return load(*args, **{**options, "build_directory": own})
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        from dsfix.log import warn

        warn(
            f"extension_cache_shared_by_versions: operator {name} cannot be compiled or loaded in {own} ({reason}); "
            "using torch's directory instead"
        )
        # else torch treats the second call as a second version, and compiles it under another name
        entries.pop(name, None)
        if known is not None:
            entries[name] = known
        return load(*args, **options)

    return load_there


def _has_compiler() -> bool:
    from torch.utils.cpp_extension import CUDA_HOME

    if CUDA_HOME is not None and shutil.which("nvcc", path=os.path.join(CUDA_HOME, "bin")) is None:
        return False
    return shutil.which(os.environ.get("CXX", "c++")) is not None


def _directories(name: str) -> tuple[str, str]:
    """The operator's directory for these versions, and torch's default one."""
    import deepspeed
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    from dsfix.versions import installed

    device = f"cu{torch.version.cuda}" if torch.version.cuda else "cpu"
    if torch.version.hip:
        device = f"rocm{torch.version.hip}"
    python = f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    torchs = f"{python}_{device.replace('.', '')}"
    # DeepSpeed has no version yet while it is imported
    release = getattr(deepspeed, "__version__", None) or installed("deepspeed")
    root = str(get_default_build_root())
    return (
        os.path.join(root, f"{torchs}_torch{torch.__version__}_deepspeed{release}", name),
        os.path.join(root, torchs, name),
    )


def _library(directory: str) -> str:
    return os.path.join(directory, f"{os.path.basename(directory)}.so")


def _is_of_these(directory: str) -> bool:
    """Whether the operator there was compiled from this torch and this DeepSpeed after their installation."""
    import deepspeed
    import torch

    try:
        compiled = os.stat(_library(directory)).st_mtime
        with open(os.path.join(directory, "build.ninja"), encoding="utf-8") as file:
            commands = file.read()
    except (OSError, UnicodeDecodeError):
        return False
    for package in (torch, deepspeed):
        installed = _installed_at(package.__name__)
        if installed is None or installed > compiled:
            return False
        if os.path.dirname(str(package.__file__)) + os.sep not in commands:
            return False
    return True


def _installed_at(distribution: str) -> float | None:
    """The newest time of its metadata; None if unknown. File times are often the packager's, the directory's is not."""
    from importlib import metadata

    try:
        directory = str(metadata.distribution(distribution)._path)  # type: ignore[attr-defined]
        return max(os.stat(each).st_mtime for each in (directory, *(e.path for e in os.scandir(directory))))
    except (metadata.PackageNotFoundError, AttributeError, OSError):
        return None


PATCH = Patch(
    title="Operators compiled for another DeepSpeed or torch are loaded from the cache",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_BUILDER}.jit_load",
            after=_IMPORT,
            code="load = load_in_own_directory(load)",
            uses=(load_in_own_directory,),
        ),
    ),
    symptom=r"torch_extensions/\S+\.so: undefined symbol|has no attribute 'vector_kernel_level'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/730": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/3410": "reported",
    },
    present=(
        Source(f"{_BUILDER}.__init__", "self.name = name"),
        Source(f"{_BUILDER}.jit_load", f"{_IMPORT}\nstart_build = time.time()"),
    ),
    device="cpu",
)


_SOURCE = """
#include <Python.h>
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "dsfix_lab", nullptr, -1, nullptr}};
PyMODINIT_FUNC PyInit_dsfix_lab() {{
    PyObject* self = PyModule_Create(&module);
    PyModule_AddIntConstant(self, "made_for", {number});
    return self;
}}
"""


def reproduce(lab: Lab) -> str:
    from unittest import mock

    deepspeed = lab.deepspeed
    if not _has_compiler() or shutil.which("ninja") is None:
        raise CannotTell("needs a C++ compiler and ninja")

    from deepspeed.ops.op_builder import builder
    from torch.utils import cpp_extension

    source = lab.tmp / "operator.cpp"

    class Operator(builder.OpBuilder):  # type: ignore[misc,unused-ignore]
        def absolute_name(self) -> str:
            return str(self.name)

        def sources(self) -> list[str]:
            return [str(source)]

    made_for = []
    os.environ.pop("TORCH_EXTENSIONS_DIR", None)  # set by the lab
    os.environ["XDG_CACHE_HOME"] = str(lab.tmp)
    for number, version in enumerate((deepspeed.__version__, "99.0.0"), start=1):
        source.write_text(_SOURCE.format(number=number), encoding="utf-8")
        os.utime(source, (0, 0))  # like package managers that preserve times
        # as in a separate process with that release installed
        versioner = type(cpp_extension.JIT_EXTENSION_VERSIONER)()
        with (
            mock.patch.object(deepspeed, "__version__", version),
            mock.patch.object(cpp_extension, "JIT_EXTENSION_VERSIONER", versioner),
        ):
            made_for.append(Operator(name="dsfix_lab").jit_load(verbose=False).made_for)
    if made_for == [1, 1]:
        raise BugPresent("a second release loads the operator that was compiled for the first (1 instead of 2)")
    assert made_for == [1, 2], made_for
    return "each of two releases has compiled and loaded its own operator (1 and 2)"
