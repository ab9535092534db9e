"""Compiles the emulated device once per torch, Python and source, into a cache shared by processes.

Needs a C++ compiler; the build imports neither torch nor ninja.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsfix.lab.distributions import LabUnavailable, TorchBuild, torch_build
from dsfix.settings import cache_directory

LIBRARY = "emulated_cuda"
_SOURCES = Path(__file__).parent / "csrc"


def library() -> Path:
    """The compiled library, built if necessary (about 25 s). Raises LabUnavailable, naming what is missing."""
    torch = supported_torch()
    directory = cache_directory() / f"{LIBRARY}-{_key(torch)}"
    result = directory / f"{LIBRARY}.so"
    if result.exists():
        return result
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.with_suffix(".lock")):
            if not result.exists():
                _build_into(directory, torch)
    except OSError as error:
        raise LabUnavailable(f"the emulated CUDA device cannot be built in {directory.parent}: {error}") from None
    return result


def supported_torch() -> TorchBuild:
    """The installed torch. Raises LabUnavailable if the emulated device cannot be built for it here."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise LabUnavailable(f"the emulated CUDA device requires Linux x86-64, this is {system} {machine}")
    if platform.python_implementation() != "CPython":
        raise LabUnavailable("the emulated CUDA device needs CPython")
    return torch_build()


def _key(torch: TorchBuild) -> str:
    digest = hashlib.sha256()
    for source in [Path(__file__), *sorted(_SOURCES.iterdir())]:
        digest.update(source.read_bytes())
    return f"torch{torch.version}-{sys.implementation.cache_tag}-{digest.hexdigest()[:12]}"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock on the file until the context ends; the lock is released if the process dies."""
    import fcntl  # not on Windows

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(directory: Path, torch: TorchBuild) -> None:
    name = os.environ.get("CXX") or "g++"
    compiler = shutil.which(name)
    if compiler is None:
        raise LabUnavailable(f"the emulated CUDA device needs a C++ compiler: {name} not found")
    python_include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(python_include, "Python.h")):
        raise LabUnavailable(f"the emulated CUDA device needs Python's headers: {python_include}/Python.h not found")
    if not (torch.directory / "include" / "ATen" / "ATen.h").exists():
        raise LabUnavailable(f"the emulated CUDA device needs torch's headers, missing from {torch.directory}")
    with tempfile.TemporaryDirectory(prefix=directory.name, dir=directory.parent) as temporary:
        work = Path(temporary, "build")
        work.mkdir()
        (work / "device_rules.inc").write_text(_device_rules(torch))
        command = [
            *(compiler, "-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-w", "-fvisibility=hidden"),
            *(f"-DTORCH_EXTENSION_NAME={LIBRARY}", "-DTORCH_API_INCLUDE_EXTENSION_H"),
            f"-D_GLIBCXX_USE_CXX11_ABI={_abi(torch)}",
            *("-I", str(work), "-isystem", str(torch.directory / "include"), "-isystem", python_include),
            *("-isystem", str(torch.directory / "include" / "torch" / "csrc" / "api" / "include")),
            *("-o", str(work / f"{LIBRARY}.so"), str(_SOURCES / f"{LIBRARY}.cpp")),
            *("-L", str(torch.directory / "lib"), "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
            raise LabUnavailable(f"the emulated CUDA device does not compile: {errors[0] if errors else 'no message'}")
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(work, directory)


def _abi(torch: TorchBuild) -> int:
    """Which std::string torch was compiled with: 0 before torch 2.7's wheels, else 1."""
    return int(b"SourceLocationESs" not in (torch.directory / "lib" / "libc10.so").read_bytes())


def _device_rules(torch: TorchBuild) -> str:
    """The operators that torch does not check for a common device, as initializers for checks.h."""
    path = torch.directory.parent / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise LabUnavailable(f"the emulated CUDA device needs torch's list of operators: {path} not found") from None
    lines = []
    for entry in re.split(r"\n(?=- func: )", text):
        name = re.match(r"- func: ([\w.]+)\(", entry)
        check = re.search(r"^  device_check: NoCheck(.*)$", entry, re.MULTILINE)
        if name and check:
            foreach = "Foreach" if name[1].startswith("_foreach_") else "None"
            rule = "Iterator" if "TensorIterator" in check[1] else foreach
            lines.append(f'{{"{name[1]}", Rule::{rule}}},\n')
    return "".join(lines)
