"""Makes the folder: wheels, the programs, and the part of `matrix` that runs them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement

from dsfix.cli.exits import CommandError
from matrix import fingerprints, source_proof, table
from matrix.gpu import choice

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60_000_000  # bytes
_MODULES = ("__init__.py", "proofs.py", "fingerprints.py")  # with this package, what the folder runs
_SOURCES = ("dsfix", "patches", "pyproject.toml", "setup.cfg", "README.md", "LICENSE")
_PLATFORMS = ("2_17", "2014", "2_28", "2_27", "2_24", "2_26", "2_12", "2010", "2_5", "1")  # pip compares names
_SECONDS = 900


def make(folder: Path, python: str) -> int:
    """Make or renew the folder, for machines with that minor version of Python; returns its size in bytes.

    DeepSpeed's wheels are kept. Raises CommandError if something cannot be had, or the folder would be too large.
    """
    releases = _releases()
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    named = {f"deepspeed-{release}-py3-none-any.whl": release for release in releases}
    for path in wheels.iterdir():
        if path.name not in named:
            path.unlink()
    for name, release in named.items():
        if not (wheels / name).is_file():
            _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), f"deepspeed=={release}")
        if not (wheels / name).is_file():
            raise CommandError(f"deepspeed {release} does not build a wheel without compiled operators")
    _build_dsfix(wheels)
    _download(wheels, python)
    _copy(folder)
    entries = source_proof.chosen(None)
    manifest = {
        "python": python,
        "releases": releases,
        "fingerprints": {entry.id: fingerprints.of(entry) for entry in entries},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > LIMIT:
        raise CommandError(f"{folder} has {size / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f}")
    return size


def _releases() -> list[str]:
    """Few releases of the table's first environment that show each bug of a GPU, and the newest."""
    current = table.load()
    environment = next(iter(current.environments.values()))
    run_in = [each.deepspeed for each in current.run_in(environment.name)]
    versions = {**environment.distributions, "python": environment.python}
    of_releases = {each: {**versions, "deepspeed": each} for each in run_in}
    return choice.cover(source_proof.chosen(None), of_releases, run_in[-1])


def _build_dsfix(wheels: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dsfix-gpu-") as directory:  # a build in the checkout would leave files
        for name in _SOURCES:
            source, copy = ROOT / name, Path(directory, name)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, copy)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), directory)


def _download(wheels: Path, python: str) -> None:
    """The wheels' requirements except torch, for that Python on Linux x86-64; NumPy and pydantic as in the table."""
    pinned = next(iter(table.load().environments.values())).distributions
    requirements = {}
    for path in wheels.iterdir():
        for requirement in _requirements(path):
            if requirement.name != "torch" and (
                requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ):
                requirements[requirement.name] = (
                    f"{requirement.name}=={pinned[requirement.name]}"
                    if requirement.name in pinned
                    else requirement.name
                )
    platforms = [part for each in _PLATFORMS for part in ("--platform", f"manylinux{_glibc(each)}_x86_64")]
    target = ["--only-binary", ":all:", "--python-version", python, *platforms, "--dest", str(wheels)]
    _pip("download", *target, *sorted(requirements.values()))


def _glibc(name: str) -> str:
    return f"_{name}" if "_" in name else name


def _requirements(wheel: Path) -> Iterable[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return [Requirement(each) for each in message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])]


def _copy(folder: Path) -> None:
    here = Path(__file__).parent
    shutil.rmtree(folder / "matrix", ignore_errors=True)
    shutil.copytree(here, folder / "matrix" / "gpu", ignore=shutil.ignore_patterns("__pycache__"))
    for name in _MODULES:
        shutil.copyfile(here.parent / name, folder / "matrix" / name)
    shutil.copyfile(here / "run.py", folder / "run.py")
    (folder / "programs").mkdir(exist_ok=True)
    program = "streams.py"
    shutil.copyfile(ROOT / "tests" / "lab" / "programs" / program, folder / "programs" / program)


def _pip(command: str, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    environment["DS_BUILD_OPS"] = "0"
    argv = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise CommandError(f"pip {command} {arguments[-1]}: not finished after {_SECONDS} s") from None
    if done.returncode:
        raise CommandError(f"pip {command}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


def this_python() -> str:
    return ".".join(platform.python_version_tuple()[:2])
