"""The source of the inspected processes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from dsfix.lab.accelerator import INTEL, LAST_WITH_INTEL
from dsfix.testing.contract.client import Server

# what DeepSpeed imports from other packages: imported once
_PRELOADED = (
    *("torch", "numpy", "pydantic", "hjson", "psutil", "tqdm", "cpuinfo", "setuptools", "sympy", "einops", "msgpack"),
    *("torch._dynamo", "torch.utils.cpp_extension"),
)
_AGENT = "torch.distributed.elastic.agent.server.api"  # contains targets of patches

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Machine:
    """Servers ordered from most to no preloaded modules; `scratch` is a directory for copies."""

    servers: tuple[Server, ...]
    scratch: Path

    def without(self, modules: Iterable[str]) -> Server:
        """The first server that has imported none of these."""
        return next((each for each in self.servers if each.loaded.isdisjoint(modules)), self.servers[-1])

    def directory(self) -> Path:
        return self.scratch / str(next(_numbers))

    def front(self, release: str) -> tuple[Path, ...]:
        """The first entries of sys.path: stubs of Intel packages that the CPU accelerator of older releases imports."""
        if Version(release) > LAST_WITH_INTEL:
            return ()
        directory = self.scratch / "stubs"
        directory.mkdir(exist_ok=True)
        for name in INTEL:
            (directory / f"{name}.py").touch()
        return (directory,)


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Machine]:
    """A machine in `directory` until the context ends; a server starts with its first request."""
    servers = []
    for name, preloaded in {"warm": (*_PRELOADED, _AGENT), "without_agent": _PRELOADED, "cold": ()}.items():
        (directory / name).mkdir(parents=True)
        servers.append(Server(_environment(), directory / name, preloaded))
    scratch = directory / "copies"
    scratch.mkdir()
    try:
        yield Machine(tuple(servers), scratch)
    finally:
        for server in servers:
            server.close()


def _environment() -> dict[str, str]:
    """The variables of every process: no GPU, no dsfix settings, no bytecode next to the release."""
    mine = ("DSFIX_", "_DSFIX_", "RANK", "LOCAL_RANK", "SLURM", "OMPI", "PMI", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**kept, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
