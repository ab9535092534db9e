"""Operators that DeepSpeed compiles at run time are kept in one directory for all versions of DeepSpeed and torch.

Why: torch keeps them below ~/.cache/torch_extensions in a directory per Python and CUDA version, whatever DeepSpeed and
    torch they were compiled for. Whether one is compiled again is told by command lines and by the files' times. An
    upgrade that keeps old times (conda, uv) leaves the old one in use: "undefined symbol", a missing attribute, or old
    code in silence. Two environments in turn compile each over the other's, under a job that runs, and one that is
    killed meanwhile leaves a lock on which all others wait.
How: a directory of its own for each (Python, CUDA or ROCm, torch, DeepSpeed), beside torch's, as `build_directory` of
    the one call that compiles. The environment is not changed, so child processes and other packages keep theirs.
    Torch's directory stays in use where TORCH_EXTENSIONS_DIR is set; for an operator that was compiled there from this
    very torch's and DeepSpeed's files after both were installed, as in an image that brings its operators; and without
    a C++ compiler or, with CUDA, nvcc, unless the operator is in the own directory. Where compiling or loading in the
    own directory fails, torch's is taken after one warning. What is not found there is compiled once more at the first
    run; old directories stay, and may be deleted.
Upstream: not fixed; https://github.com/deepspeedai/DeepSpeed/issues/730,
    https://github.com/deepspeedai/DeepSpeed/issues/3410.
Retire: when https://github.com/deepspeedai/DeepSpeed/issues/730 is fixed in DeepSpeed or torch.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_IMPORT = "from torch.utils.cpp_extension import load"
_OWN = """
from dsfix.patches.extension_cache_shared_by_versions import load_in_own_directory
load = load_in_own_directory(load)
"""

PATCH = Patch(
    title="compiled operators of another DeepSpeed or torch are taken from the cache",
    severity=Severity.CRASH,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=(Edit("deepspeed.ops.op_builder.builder:OpBuilder.jit_load", after=_IMPORT, code=_OWN),),
    symptom=r"torch_extensions/\S+\.so: undefined symbol|has no attribute 'vector_kernel_level'",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/730",
        "https://github.com/deepspeedai/DeepSpeed/issues/3410",
    ),
    fixed_in=None,
    device="cpu",
)


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
            return load(*args, **{**options, "build_directory": own})
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        from dsfix.engine.log import warn

        warn(f"the operator {name} cannot be compiled or loaded in {own} ({reason}): torch's directory is taken")
        # torch would take the second call for a second version, and compile it under another name
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
    """The operator's directory for these versions, and the one that torch would take."""
    import deepspeed  # type: ignore[import-not-found,unused-ignore]
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    from dsfix.engine.versions import installed

    device = f"cu{torch.version.cuda}" if torch.version.cuda else "cpu"
    if torch.version.hip:
        device = f"rocm{torch.version.hip}"
    python = f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    torchs = f"{python}_{device.replace('.', '')}"
    # during DeepSpeed's own import it has no version yet
    release = getattr(deepspeed, "__version__", None) or installed("deepspeed")
    root = str(get_default_build_root())
    return (
        os.path.join(root, f"{torchs}_torch{torch.__version__}_deepspeed{release}", name),
        os.path.join(root, torchs, name),
    )


def _library(directory: str) -> str:
    return os.path.join(directory, f"{os.path.basename(directory)}.so")


def _is_of_these(directory: str) -> bool:
    """Whether the operator there was compiled from this torch and this DeepSpeed after they were installed."""
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
    """The newest time of its metadata: those of the files are often the packager's, the directory's is not."""
    from importlib import metadata

    try:
        directory = str(metadata.distribution(distribution)._path)  # type: ignore[attr-defined]
        return max(os.stat(each).st_mtime for each in (directory, *(e.path for e in os.scandir(directory))))
    except (metadata.PackageNotFoundError, AttributeError, OSError):
        return None


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
    _ = lab.torch
    if not _has_compiler() or shutil.which("ninja") is None:
        raise CannotTell("needs a C++ compiler and ninja")
    deepspeed = lab.deepspeed
    from unittest import mock

    from deepspeed.ops.op_builder import builder  # type: ignore[import-not-found,unused-ignore]
    from torch.utils import cpp_extension

    source = lab.tmp / "operator.cpp"

    class Operator(builder.OpBuilder):  # type: ignore[misc,unused-ignore]
        def absolute_name(self) -> str:
            return str(self.name)

        def sources(self) -> list[str]:
            return [str(source)]

    made_for = []
    os.environ.pop("TORCH_EXTENSIONS_DIR", None)  # the lab's own
    os.environ["XDG_CACHE_HOME"] = str(lab.tmp)
    for number, version in enumerate((deepspeed.__version__, "99.0.0"), start=1):
        source.write_text(_SOURCE.format(number=number), encoding="utf-8")
        os.utime(source, (0, 0))  # as the package managers that keep times
        # as in a process of its own, in which that release is installed
        versioner = type(cpp_extension.JIT_EXTENSION_VERSIONER)()
        with (
            mock.patch.object(deepspeed, "__version__", version),
            mock.patch.object(cpp_extension, "JIT_EXTENSION_VERSIONER", versioner),
        ):
            made_for.append(Operator(name="dsfix_lab").jit_load(verbose=False).made_for)
    if made_for == [1, 1]:
        raise BugPresent("the operator of a second release is the one that was compiled for the first (1 instead of 2)")
    assert made_for == [1, 2], made_for
    return "two releases have compiled and loaded an operator each, their own (1 and 2)"
