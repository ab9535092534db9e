"""The source of the inspected processes, and modified copies of an installed package for them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsfix.lab.accelerator import INTEL, LAST_WITH_INTEL
from dsfix.lab.distributions import gpu_likely
from dsfix.lab.preload import ForkServer
from dsfix.lab.ranks import fresh_command

# what DeepSpeed imports from other packages, besides torch
_PRELOADED = ("numpy", "pydantic", "hjson", "psutil", "tqdm", "cpuinfo", "setuptools", "sympy", "einops", "msgpack")
_TIMEOUT = 600  # seconds
_MODULE = "contract_process.steps"  # imported by this name, because importing it as part of dsfix imports dsfix first

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Starter:
    """Starts processes in which `loaded` is imported already."""

    command: tuple[str, ...]
    loaded: frozenset[str] = frozenset()

    def run(self, arguments: Mapping[str, Any], path: Sequence[Path], environment: Mapping[str, str]) -> list[Any]:
        """The result of steps.run for `arguments`; fails the test if the process did not finish."""
        with tempfile.TemporaryDirectory(prefix="contract-") as directory:
            request, result = Path(directory, "request"), Path(directory, "result")
            request.write_text(json.dumps(arguments), encoding="utf-8")
            paths = [Path(__file__).parent, *path, *filter(None, [os.environ.get("PYTHONPATH")])]
            done = subprocess.run(
                [*self.command, str(request), str(result)],
                env={**_environment(), **environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
            assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"[-4000:]
            answer: list[Any] = json.loads(result.read_text(encoding="utf-8"))
        return answer


@dataclass(frozen=True)
class Machine:
    """Starters ordered from most to no preloaded modules; `scratch` is a directory for copies."""

    starters: tuple[Starter, ...]
    scratch: Path

    def without(self, modules: Iterable[str]) -> Starter:
        """The first starter that has imported none of these."""
        return next(starter for starter in self.starters if starter.loaded.isdisjoint(modules))

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
    """A machine in `directory` until the context ends. With a GPU each process is a fresh one."""
    fresh = Starter(fresh_command(_MODULE))
    if gpu_likely():
        yield Machine((fresh,), directory)
        return
    script = directory / "preload.py"
    script.write_text("".join(f"try: import {name}\nexcept ImportError: pass\n" for name in _PRELOADED))
    with ForkServer("cpu", script) as server:
        yield Machine((Starter(server.command(_MODULE), server.modules), fresh), directory)


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
