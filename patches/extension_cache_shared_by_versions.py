"""Operators that DeepSpeed compiles at run time are kept in one directory for all versions of DeepSpeed and torch.

Why: torch keeps them below ~/.cache/torch_extensions in a directory per Python and CUDA version, whatever DeepSpeed and
    torch they were compiled for. Whether one is compiled again is told by command lines and by the files' times. An
    upgrade that keeps old times (conda, uv) leaves the old one in use: "undefined symbol", a missing attribute, or old
    code in silence. Two environments in turn compile each over the other's, under a job that runs, and one that is
    killed meanwhile leaves a lock on which all others wait.
How: a directory of its own for each (DeepSpeed, torch, Python), beside torch's, as `build_directory` of the one call
    that compiles. The environment is not changed, so child processes and other packages keep theirs. Nothing changes
    where TORCH_EXTENSIONS_DIR is set, or without a C++ compiler or, with CUDA, nvcc: a cache that came with an image
    stays in use. The first run compiles each operator that it needs once more; old directories stay, and may be
    deleted.
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
    """torch's `load` with a directory for these versions, or `load` itself where there is another or no compiler."""
    if "TORCH_EXTENSIONS_DIR" in os.environ or not _has_compiler():
        return load

    def load_there(*args: Any, **options: Any) -> Any:
        if "name" in options and options.get("build_directory") is None:
            options["build_directory"] = _directory(options["name"])
        return load(*args, **options)

    return load_there


def _has_compiler() -> bool:
    from torch.utils.cpp_extension import CUDA_HOME

    if CUDA_HOME is not None and shutil.which("nvcc", path=os.path.join(CUDA_HOME, "bin")) is None:
        return False
    return shutil.which(os.environ.get("CXX", "c++")) is not None


def _directory(name: str) -> str:
    import deepspeed  # type: ignore[import-not-found,unused-ignore]
    import torch
    from torch.utils.cpp_extension import get_default_build_root

    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    # during DeepSpeed's own import it has no version yet
    release = getattr(deepspeed, "__version__", "")
    versions = f"{python}_torch{torch.__version__}_deepspeed{release}"
    directory = os.path.join(get_default_build_root(), versions, name)
    os.makedirs(directory, exist_ok=True)
    return str(directory)


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
