"""Rules about the caches of compiled ops and Triton."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..extensions import Build
from ..facts import EnvironmentFacts


def _locks(facts: EnvironmentFacts) -> list[Build]:
    """Returns the builds with a lock file, if it blocks: newer torch releases lock the file itself and keep it."""
    return (
        [build for build in facts.extensions.builds if build.locked is not None] if facts.packages.torch.baton else []
    )


def _on_network(facts: EnvironmentFacts) -> bool:
    return facts.extensions.disk is not None and facts.extensions.disk.network


def _stale(facts: EnvironmentFacts) -> Iterator[Found]:
    for build in _locks(facts):
        if not build.holders and not _on_network(facts):
            what = f"{_lock(build)} is {_age(facts, build)} old and no process on this machine has it open: {_WAITS}"
            yield Found(_lock(build), what)


def _stale_on_network(facts: EnvironmentFacts) -> Iterator[Found]:
    for build in _locks(facts):
        if not build.holders and _on_network(facts):
            yield Found(
                _lock(build),
                f"{_lock(build)} is {_age(facts, build)} old; unless another machine is compiling, {_WAITS}",
            )


_WAITS = "every job that needs this op hangs"


def _lock(build: Build) -> str:
    return os.path.join(build.path, "lock")


def _age(facts: EnvironmentFacts, build: Build) -> str:
    seconds = max(0, int(facts.extensions.now - (build.locked or 0)))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _unreadable(facts: EnvironmentFacts) -> Iterator[Found]:
    if facts.extensions.problem:
        yield Found("compiled ops", facts.extensions.problem)


def _unwritable(facts: EnvironmentFacts) -> Iterator[Found]:
    disk = facts.extensions.disk
    if disk is not None and not disk.writable:
        yield Found(disk.path, f"{disk.path} is not writable: no op can be compiled")


def _on_network_disk(facts: EnvironmentFacts) -> Iterator[Found]:
    if _on_network(facts) and facts.extensions.disk is not None:
        what = f"{facts.extensions.root} is on a network file system ({facts.extensions.disk.type})"
        yield Found(facts.extensions.root, what)


RULES = (
    Rule(
        id="stale_lock",
        level=Level.ERROR,
        remedy="delete the lock file, unless a container that shares the directory is compiling the op",
        find=_stale,
        evidence=(
            "https://github.com/pytorch/pytorch/issues/189245",
            "ran: CPUAdamBuilder().load() of 0.16.4 with the lock left by a killed build",
        ),
    ),
    Rule(
        id="lock_on_network_disk",
        level=Level.WARNING,
        remedy="delete the lock file if no machine is compiling the op",
        find=_stale_on_network,
        evidence=("https://github.com/pytorch/pytorch/issues/189245",),
    ),
    Rule(
        id="cache_unreadable",
        level=Level.WARNING,
        remedy="set TORCH_EXTENSIONS_DIR to a readable directory, or fix its permissions",
        find=_unreadable,
    ),
    Rule(
        id="cache_not_writable",
        level=Level.WARNING,
        remedy="set TORCH_EXTENSIONS_DIR to a writable directory, or fix its permissions",
        find=_unwritable,
    ),
    Rule(
        id="cache_on_network_disk",
        level=Level.NOTE,
        remedy="set TORCH_EXTENSIONS_DIR to a local directory, so that machines do not wait for each other's lock file",
        find=_on_network_disk,
        evidence=("https://github.com/OpenRLHF/OpenRLHF/issues/208",),
    ),
)
