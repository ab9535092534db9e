"""Python and the operating system: distribution, kernel, WSL, container."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .files import lines, text

_CONTAINERS = re.compile(r"docker|kubepods|containerd|libpod|lxc|garden")


@dataclass(frozen=True)
class Platform:
    """Python and the operating system. `wsl`: its version, 0 if none. `container`: its kind, "" if none is detected."""

    python: str
    executable: str
    prefix: str
    system: str
    distribution: str
    kernel: str
    machine: str
    libc: str
    wsl: int = 0
    container: str = ""


def collect(root: Path, environment: Mapping[str, str]) -> Platform:
    kernel = text(root / "proc/version")
    return Platform(
        python=platform.python_version(),
        executable=sys.executable or "",
        prefix=_prefix(environment),
        system=platform.system(),
        distribution=distribution(root),
        kernel=platform.release(),
        machine=platform.machine(),
        libc=" ".join(filter(None, platform.libc_ver())),
        wsl=wsl(kernel),
        container=container(root, environment),
    )


def distribution(root: Path) -> str:
    """Returns the name in /etc/os-release, "" if the file does not exist (macOS, Windows)."""
    for line in lines(root / "etc/os-release"):
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")
    return ""


def wsl(kernel: str) -> int:
    """Returns the version of the Windows Subsystem for Linux from the text of /proc/version, 0 for other kernels."""
    if "microsoft" not in kernel.lower():
        return 0
    return 2 if re.search(r"WSL2|microsoft-standard", kernel) else 1


def container(root: Path, environment: Mapping[str, str]) -> str:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    match = _CONTAINERS.search(text(root / "proc/1/cgroup"))
    return match[0] if match else ""


def _prefix(environment: Mapping[str, str]) -> str:
    if sys.prefix != sys.base_prefix:
        return f"virtual environment {sys.prefix}"
    if environment.get("CONDA_PREFIX") and os.path.realpath(environment["CONDA_PREFIX"]) == os.path.realpath(
        sys.prefix
    ):
        return f"conda environment {sys.prefix}"
    return sys.prefix
