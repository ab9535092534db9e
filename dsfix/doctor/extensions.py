"""The caches of code compiled on the user's machine: torch's extensions (DeepSpeed's ops), and Triton's."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .. import versions
from .files import Disk, disk, names, text
from .packages import Torch, home, installed_at

_SOURCE = re.compile(r"^build \S+: (?:cuda_)?compile (.+)$", re.M)


@dataclass(frozen=True)
class Build:
    """One op in the cache. Times are seconds since 1970, None if the file does not exist.

    `sources`: the source files listed in its build.ninja. `newest_source`: the modification time of the newest of them.
    `locked`: the modification time of the lock file; `holders`: the processes on this machine that have it open.
    """

    op: str
    path: str
    built: float | None = None
    sources: tuple[str, ...] = ()
    newest_source: float | None = None
    locked: float | None = None
    holders: tuple[int, ...] = ()


@dataclass(frozen=True)
class Extensions:
    """The cache of compiled ops.

    `root`: the directory where torch compiles for this Python and torch. `problem`: why `builds` is unknown, or "".
    `builds`: those in `root`, and those in dsfix's own directory.
    """

    root: str = ""
    disk: Disk | None = None
    builds: tuple[Build, ...] = ()
    problem: str = ""
    triton: Disk | None = None
    now: float = 0.0
    torch_installed: float | None = None
    deepspeed_installed: float | None = None


def collect(root: Path, environment: Mapping[str, str], torch: Torch) -> Extensions:
    chosen = environment.get("TORCH_EXTENSIONS_DIR")
    directory = Path(chosen) if chosen else default_root(environment, torch)
    above = home(environment)
    triton = environment.get("TRITON_CACHE_DIR") or (above / ".triton" if above else None)
    builds: tuple[Build, ...] = ()
    problem = "no home directory: set HOME or TORCH_EXTENSIONS_DIR"
    if directory is not None:
        builds, problem = builds_in(directory, root)
        if not chosen:
            builds += builds_in(directory.parent / dsfix_directory(), root)[0]
    return Extensions(
        root=str(directory or ""),
        disk=disk(directory, root) if directory else None,
        builds=builds,
        problem=problem,
        triton=disk(Path(triton), root) if triton else None,
        now=time.time(),
        torch_installed=installed_at("torch"),
        deepspeed_installed=installed_at("deepspeed"),
    )


def default_root(environment: Mapping[str, str], torch: Torch) -> Path | None:
    """Returns where torch.utils.cpp_extension compiles if TORCH_EXTENSIONS_DIR is not set; None without a home."""
    above = home(environment)
    if above is None:
        return None
    caches = (
        above / "Library/Caches"
        if sys.platform == "darwin"
        else Path(environment.get("XDG_CACHE_HOME") or above / ".cache")
    )
    kind, version = ("rocm", torch.hip) if torch.hip else ("cu", torch.cuda)
    built_for = f"{kind}{version.replace('.', '')}" if version else "cpu"
    return caches / "torch_extensions" / f"{_python()}_{built_for}"


def dsfix_directory() -> str:
    """Returns the directory's name under the patch extension_cache_shared_by_versions."""
    return f"{_python()}_torch{versions.installed('torch')}_deepspeed{versions.installed('deepspeed')}"


def _python() -> str:
    return f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"


def builds_in(directory: Path, root: Path) -> tuple[tuple[Build, ...], str]:
    """Returns the builds in a cache directory, and why they are unknown, or ""."""
    try:
        ops = sorted(each.name for each in os.scandir(directory) if each.is_dir())
    except FileNotFoundError:
        return (), ""
    except OSError as error:
        return (), f"{directory} cannot be read: {error.strerror}"
    builds = [_build(directory / name) for name in ops]
    holders = _holders([Path(build.path) / "lock" for build in builds if build.locked is not None], root)
    locks = [os.path.realpath(os.path.join(build.path, "lock")) for build in builds]
    return tuple(replace(build, holders=holders.get(lock, ())) for build, lock in zip(builds, locks)), ""


def _build(path: Path) -> Build:
    sources = tuple(source for line in _SOURCE.findall(text(path / "build.ninja")) for source in line.split())
    written = [time for time in map(_time, map(Path, sources)) if time is not None]
    return Build(
        op=path.name,
        path=str(path),
        built=_time(path / f"{path.name}.so"),
        sources=sources,
        newest_source=max(written) if written else None,
        locked=_time(path / "lock"),
    )


def _holders(locks: list[Path], root: Path) -> dict[str, tuple[int, ...]]:
    """Returns lock file -> the processes that have it open, among those that this user may inspect."""
    lock_paths = {os.path.realpath(lock) for lock in locks}
    holders: dict[str, tuple[int, ...]] = {}
    if not lock_paths:
        return holders
    for process in (name for name in names(root / "proc") if name.isdecimal()):
        for number in names(root / "proc" / process / "fd"):
            try:
                target = os.readlink(root / "proc" / process / "fd" / number)
            except OSError:
                continue
            if target in lock_paths:
                holders[target] = (*holders.get(target, ()), int(process))
    return holders


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
