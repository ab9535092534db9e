"""The source of the inspected processes, and modified copies of an installed package for them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.lab.accelerator import INTEL, LAST_WITH_INTEL

# what DeepSpeed imports from other packages: imported once
_PRELOADED = (
    *("torch", "numpy", "pydantic", "hjson", "psutil", "tqdm", "cpuinfo", "setuptools", "sympy", "einops", "msgpack"),
    *("torch._dynamo", "torch.utils.cpp_extension"),
)
_AGENT = "torch.distributed.elastic.agent.server.api"  # contains targets of patches

_SERVER = Path(__file__).with_name("contract_process") / "server.py"

_numbers = itertools.count(1)


class Server:
    """A process that has imported `preloaded` and forks a child per request; started with the first request."""

    def __init__(self, environment: Mapping[str, str], directory: Path, preloaded: Sequence[str] = ()) -> None:
        self._log = directory / "server.log"
        self._environment, self._preloaded = dict(environment), tuple(preloaded)

    @functools.cached_property
    def _process(self) -> subprocess.Popen[str]:
        with self._log.open("w", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, str(_SERVER), *self._preloaded],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                cwd=self._log.parent,
                text=True,
            )

    @functools.cached_property
    def loaded(self) -> frozenset[str]:
        """The modules imported when its processes start."""
        (names,) = self.run({"changes": [], "provided": [], "steps": [["loaded"]]}, [], {})
        return frozenset(names)

    def run(
        self, arguments: Mapping[str, Any], path: Sequence[Path], environment: Mapping[str, str], timeout: int = 180
    ) -> list[Any]:
        """The result of steps.run for `arguments`; fails the test if the process did not finish."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "arguments": arguments,
            "path": [str(each) for each in path],
            "environment": dict(environment),
            "timeout": timeout,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the server has ended:\n{self._log.read_text(encoding='utf-8')[-4000:]}"
        answer = json.loads(line)
        assert "result" in answer, answer["error"]
        result: list[Any] = answer["result"]
        return result

    def close(self) -> None:
        if "_process" not in vars(self):
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


@dataclass(frozen=True)
class Machine:
    """Servers ordered from most to no preloaded modules; `scratch` is a directory for copies."""

    servers: tuple[Server, ...]
    scratch: Path

    def without(self, modules: Iterable[str]) -> Server:
        """The first server that has imported none of these."""
        return next((server for server in self.servers if server.loaded.isdisjoint(modules)), self.servers[-1])

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
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**inherited, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def copy(directory: Path, root: Path, package: str, changed: Mapping[str, str]) -> None:
    """Copies `package` from `root` to `directory` by links, except for the changed files: relative path -> text."""
    _mirror(directory / package, root / package, {tuple(path.split("/")[1:]): text for path, text in changed.items()})
    for described in root.glob(f"{package}-*.dist-info"):
        (directory / described.name).symlink_to(described)


def _mirror(directory: Path, original: Path, changed: Mapping[tuple[str, ...], str]) -> None:
    directory.mkdir(parents=True)
    names = {each.name for each in original.iterdir()} if original.is_dir() else set()
    for name in names | {path[0] for path in changed}:
        below = {path[1:]: text for path, text in changed.items() if path[0] == name}
        if () in below:
            (directory / name).write_text(below[()], encoding="utf-8")
        elif below:
            _mirror(directory / name, original / name, below)
        else:
            (directory / name).symlink_to(original / name)
