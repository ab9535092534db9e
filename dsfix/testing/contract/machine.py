"""Where the processes come from that are looked into."""

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

# what DeepSpeed imports of others: imported once
_PRELOADED = (
    *("torch", "numpy", "pydantic", "hjson", "psutil", "tqdm", "cpuinfo", "setuptools", "sympy", "einops", "msgpack"),
    *("torch._dynamo", "torch.utils.cpp_extension"),
)
_AGENT = "torch.distributed.elastic.agent.server.api"  # has targets of patches

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Machine:
    """Servers, the one that has imported most first, the last one nothing; `scratch`: a directory for copies."""

    servers: tuple[Server, ...]
    scratch: Path

    def without(self, modules: Iterable[str]) -> Server:
        """The first server that has imported none of these."""
        return next((each for each in self.servers if each.loaded.isdisjoint(modules)), self.servers[-1])

    def directory(self) -> Path:
        return self.scratch / str(next(_numbers))

    def front(self, release: str) -> tuple[Path, ...]:
        """What has to come first on sys.path for the CPU accelerator of that release, which imports what it lacks."""
        if Version(release) > LAST_WITH_INTEL:
            return ()
        directory = self.scratch / "stubs"
        directory.mkdir(exist_ok=True)
        for name in INTEL:
            (directory / f"{name}.py").touch()
        return (directory,)


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Machine]:
    """A machine below `directory` for as long as the context lasts; a server starts with its first request."""
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
    """Of every process: a machine without a GPU, nothing of dsfix's settings, no bytecode beside the release."""
    mine = ("DSFIX_", "_DSFIX_", "RANK", "LOCAL_RANK", "SLURM", "OMPI", "PMI", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**kept, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
