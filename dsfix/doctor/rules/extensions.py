"""Rules about the caches of compiled ops and Triton."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from ...rules import Match, error, note, warning
from ..extensions import Build
from ..facts import EnvironmentFacts

_WAITS = "every job that needs this op hangs"
_OWN_DIRECTORY = "put `import dsfix` in the script, which gives each version its own directory, or delete this one"
_PATCH = ("extension_cache_shared_by_versions",)


def _locks(facts: EnvironmentFacts) -> list[Build]:
    """Returns the builds with a lock file, if it blocks: newer torch releases lock the file itself and keep it."""
    builds = facts.extensions.builds if facts.packages.torch.baton else ()
    return [build for build in builds if build.locked is not None]


def _on_network(facts: EnvironmentFacts) -> bool:
    return facts.extensions.disk is not None and facts.extensions.disk.network


@error(
    "delete the lock file, unless a container that shares the directory is compiling the op",
    "pytorch/pytorch#189245",
    "ran: CPUAdamBuilder().load() of 0.16.4 with the lock left by a killed build",
)
def stale_lock(facts: EnvironmentFacts) -> Iterator[Match]:
    for build in _locks(facts):
        if not build.holders and not _on_network(facts):
            what = f"{_lock(build)} is {_age(facts, build)} old and no process on this machine has it open: {_WAITS}"
            yield Match(_lock(build), what)


@warning("delete the lock file if no machine is compiling the op", "pytorch/pytorch#189245")
def lock_on_network_disk(facts: EnvironmentFacts) -> Iterator[Match]:
    for build in _locks(facts):
        if not build.holders and _on_network(facts):
            yield Match(
                _lock(build),
                f"{_lock(build)} is {_age(facts, build)} old; unless another machine is compiling, {_WAITS}",
            )


def _lock(build: Build) -> str:
    return os.path.join(build.path, "lock")


def _age(facts: EnvironmentFacts, build: Build) -> str:
    seconds = max(0, int(facts.extensions.now - (build.locked or 0)))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _older_than(facts: EnvironmentFacts, package: str, installed: float | None) -> Iterator[Match]:
    """Finds builds that are older than the package but newer than their sources, so that ninja keeps them."""
    for build in facts.extensions.builds if installed is not None else ():
        if _other_installation(facts, build):
            continue
        unchanged = build.built is not None and build.newest_source is not None and build.newest_source <= build.built
        if unchanged and installed is not None and build.built is not None and build.built < installed:
            yield Match(
                build.path,
                f"{build.op} was compiled on {_day(build.built)}, before {package} was installed on {_day(installed)}, "
                "and is not recompiled because its sources are older",
            )


@warning(
    _OWN_DIRECTORY,
    "#730",
    "ran: ninja keeps a build that is newer than its sources, even if the sources were replaced",
    patches=_PATCH,
)
def op_older_than_deepspeed(facts: EnvironmentFacts) -> Iterator[Match]:
    yield from _older_than(facts, "DeepSpeed", facts.extensions.deepspeed_installed)


@warning(_OWN_DIRECTORY, "pytorch/pytorch#68905", patches=_PATCH)
def op_older_than_torch(facts: EnvironmentFacts) -> Iterator[Match]:
    yield from _older_than(facts, "torch", facts.extensions.torch_installed)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _other_installation(facts: EnvironmentFacts, build: Build) -> str:
    """Returns the directory of the other DeepSpeed that an op was compiled for; "" if this one, or not DeepSpeed's."""
    own = os.path.realpath(os.path.dirname(facts.packages.deepspeed.file)) + os.sep
    for source in build.sources if facts.packages.deepspeed.file else ():
        directory, inside, _ = source.partition(f"{os.sep}deepspeed{os.sep}")
        if inside and not os.path.realpath(source).startswith(own):
            return directory
    return ""


@note(_OWN_DIRECTORY, "#730", "#959", patches=_PATCH)
def cache_shared_by_installations(facts: EnvironmentFacts) -> Iterator[Match]:
    for build in facts.extensions.builds:
        other = _other_installation(facts, build)
        if other:
            yield Match(
                build.path,
                f"{build.op} was compiled for the DeepSpeed in {other}, not for {facts.packages.deepspeed.file}: "
                "the two recompile it in turn, and their jobs wait for each other",
            )


@warning("set TORCH_EXTENSIONS_DIR to a readable directory, or fix its permissions")
def cache_unreadable(facts: EnvironmentFacts) -> Iterator[Match]:
    if facts.extensions.problem:
        yield Match("compiled ops", facts.extensions.problem)


@warning("set TORCH_EXTENSIONS_DIR to a writable directory, or fix its permissions")
def cache_not_writable(facts: EnvironmentFacts) -> Iterator[Match]:
    disk = facts.extensions.disk
    if disk is not None and not disk.writable:
        yield Match(disk.path, f"{disk.path} is not writable: no op can be compiled")


@note(
    "set TORCH_EXTENSIONS_DIR to a local directory, so that machines do not wait for each other's lock file",
    "OpenRLHF/OpenRLHF#208",
)
def cache_on_network_disk(facts: EnvironmentFacts) -> Iterator[Match]:
    if _on_network(facts) and facts.extensions.disk is not None:
        what = f"{facts.extensions.root} is on a network file system ({facts.extensions.disk.type})"
        yield Match(facts.extensions.root, what)


@warning("set TRITON_CACHE_DIR to a local directory", "#5205")
def triton_cache_on_nfs(facts: EnvironmentFacts) -> Iterator[Match]:
    disk = facts.extensions.triton
    if disk is not None and "nfs" in disk.type and facts.versions.get("triton") is not None:
        yield Match("TRITON_CACHE_DIR", f"Triton's cache, {disk.path}, is on NFS: jobs hang or exit slowly")
