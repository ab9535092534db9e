"""What DeepSpeed's ops are compiled with: nvcc, a C++ compiler, ninja, Python's headers; and numactl."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .programs import ProgramOutput, run_program


@dataclass(frozen=True)
class Toolchain:
    """Versions are "" if the program is missing or reports none; `complaints`: errors of programs that failed.

    `cuda_home` is where torch looks for nvcc; `nvcc_path` is the nvcc there.
    """

    cuda_home: str = ""
    nvcc_path: str = ""
    nvcc: str = ""
    compiler: str = ""
    compiler_version: str = ""
    gcc: bool = False
    ninja: str = ""
    python_headers: bool = False
    numactl: str = ""
    complaints: tuple[str, ...] = ()


def collect(root: Path, environment: Mapping[str, str], seconds: float) -> Toolchain:
    path = environment.get("PATH")
    complaints: list[str] = []

    def run(program: str, *arguments: str) -> ProgramOutput:
        answer = run_program([program, *arguments], seconds, environment)
        if answer.problem or answer.status:
            complaints.append(f"{program}: {answer.problem or answer.first_line or f'status {answer.status}'}")
            return ProgramOutput()
        return answer

    home = cuda_home(root, environment)
    nvcc = shutil.which(os.path.join(home, "bin/nvcc")) if home else None
    compiler = (environment.get("CXX") or "c++").split()[0]
    compiler_path = shutil.which(compiler, path=path)
    ninja = shutil.which("ninja", path=path)
    version = run(compiler_path, "--version") if compiler_path else ProgramOutput()
    return Toolchain(
        cuda_home=home,
        nvcc_path=nvcc or "",
        nvcc=nvcc_version(run(nvcc, "-V").output) if nvcc else "",
        compiler=compiler_path or "",
        compiler_version=compiler_version(version.output),
        gcc="Free Software Foundation" in version.output,
        ninja=run(ninja, "--version").output.strip()[:40] if ninja else "",
        python_headers=os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
        numactl=shutil.which("numactl", path=path) or "",
        complaints=tuple(complaints),
    )


def cuda_home(root: Path, environment: Mapping[str, str]) -> str:
    """Returns CUDA_HOME as torch finds it: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda; else ""."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(name):
            return environment[name]
    nvcc = shutil.which("nvcc", path=environment.get("PATH"))
    if nvcc:
        return os.path.dirname(os.path.dirname(nvcc))
    default = root / "usr/local/cuda"
    return str(default) if default.exists() else ""


def nvcc_version(output: str) -> str:
    """Returns the version in the output of `nvcc -V`, e.g. "12.4"; else ""."""
    match = re.search(r"\brelease (\d+\.\d+)", output)
    return match[1] if match else ""


def compiler_version(output: str) -> str:
    """Returns the version in the first line of `c++ --version`, e.g. "12.2.0"; else ""."""
    first = output.partition("\n")[0]
    match = re.findall(r"(?<![\w.])\d+\.\d+(?:\.\d+)*", re.sub(r"\([^)]*\)", "", first))
    return str(match[-1]) if match else ""
