"""This Python's environment, and DeepSpeed's releases for it, each installed once into dsfix's cache."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import CommandError
from dsfix.lab.cuda.compiling import locked
from dsfix.lab.distributions import LabUnavailable, gpu_likely, torch_build
from dsfix.patch import Severity
from dsfix.settings import cache_directory
from dsfix.start import DIRECTORY
from matrix import table

_GPU_NAME = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
_INSTALL_TIMEOUT = 900  # seconds


class Unavailable(CommandError):
    """Something required is not available here; the message is one sentence."""


def current(releases: table.Table) -> table.Environment:
    """The table's environment with this Python's minor version and torch. Raises Unavailable."""
    python = ".".join(platform.python_version_tuple()[:2])
    try:
        torch = importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable("torch is not installed in this Python") from None
    for environment in releases.environments.values():
        if (environment.python, environment.torch) == (python, torch):
            return environment
    known = ", ".join(
        f"Python {environment.python} with torch {environment.torch}" for environment in releases.environments.values()
    )
    raise Unavailable(f"Python {python} with torch {torch} is not an environment of the table, which has {known}")


def gpu() -> str:
    """The name of the GPU that reproductions use here, or ""."""
    if not gpu_likely():
        return ""
    done = subprocess.run([sys.executable, "-c", _GPU_NAME], capture_output=True, text=True)
    return done.stdout.strip()


def installed(release: str) -> Path:
    """The directory, for PYTHONPATH, of that DeepSpeed release, installed without dependencies on first use.

    One per torch and Python, because DeepSpeed's setup.py depends on both. Raises Unavailable with the installer's
    reason, or if a dependency is not installed in this Python.
    """
    try:
        shelf = cache_directory() / "releases" / f"torch{torch_build().version}-{sys.implementation.cache_tag}"
        directory = shelf / f"deepspeed-{release}"
        if not directory.is_dir():
            shelf.mkdir(parents=True, exist_ok=True)
            with locked(shelf / f"deepspeed-{release}.lock"):
                if not directory.is_dir():
                    _install(release, directory)
    except (OSError, LabUnavailable) as error:
        raise Unavailable(f"deepspeed {release} cannot be installed: {error}") from None
    absent = _absent(directory)
    if absent:
        raise Unavailable(f"deepspeed {release} needs {', '.join(absent)}, not installed in this Python")
    return directory.absolute()


def with_dsfix(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that loads dsfix at start, as with `python -m dsfix run`."""
    path = [DIRECTORY, environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def not_importing() -> tuple[str, ...]:
    """The patches that are not needed to import DeepSpeed."""
    return tuple(entry.id for entry in catalogue().values() if entry.patch.severity is not Severity.IMPORT)


def _absent(directory: Path) -> list[str]:
    """The names of the release's dependencies that are not installed."""
    [distribution] = importlib.metadata.distributions(path=[str(directory)])
    needed = [Requirement(text) for text in distribution.requires or ()]
    names = [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


def _install(release: str, directory: Path) -> None:
    uv = shutil.which("uv", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if uv is None:
        raise Unavailable(f"deepspeed {release} cannot be installed: uv is not found")
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by an installation that was killed
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-build-isolation", "--no-deps"]
    command += ["--compile-bytecode"]  # reproductions do not write bytecode
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    environment["DS_BUILD_OPS"] = "0"
    try:
        with tempfile.TemporaryDirectory() as name:
            # setup.py imports DeepSpeed's kernels, for which triton would look for a GPU's driver
            Path(name, "triton.py").write_text("raise ImportError")
            done = subprocess.run(
                [*command, "--target", str(partial), f"deepspeed=={release}"],
                env={**environment, "PYTHONPATH": name},
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT,
            )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"deepspeed {release} cannot be installed: not finished after {_INSTALL_TIMEOUT} s") from None
    if done.returncode != 0:
        raise Unavailable(f"deepspeed {release} cannot be installed: {_reason(done.stderr)}")
    os.replace(partial, directory)


def _reason(stderr: str) -> str:
    """uv's message, which is drawn as a tree, as one line."""
    words = (word.strip("\u00d7├╰│─▶") for word in stderr.split())
    return " ".join(word for word in words if word)[:300] or "no message"
