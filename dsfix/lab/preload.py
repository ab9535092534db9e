"""A process that has imported torch and forks the ranks, so that each job does not wait for torch's import.

It runs no operator and starts no thread, so that nothing is lost in a fork. A forked rank imports dsfix and DeepSpeed
itself, but after torch: a bug of what torch's import provides cannot be reproduced in it, and the order of sets of
strings, which differs between fresh processes, is the same on all ranks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dsfix.lab.cuda.compiling import supported_torch
from dsfix.lab.distributions import LabUnavailable, gpu_likely
from dsfix.lab.isolation import isolated_environment

_SERVER = Path(__file__).with_name("preload_server.py")
_RANK = Path(__file__).with_name("preload_rank.py")


class ForkServer:
    """The process, for ranks on "cuda" (emulated) or "cpu". A context manager; also ends with this process.

    modules: those that a rank starts with, so that no patch of them can be tried in it.
    scripts: run once in it, with `environment`, to preload more; ranks use the dsfix that the last one imports. Raises
    LabUnavailable if the process cannot be started.
    """

    def __init__(self, device: str, *scripts: Path, environment: Mapping[str, str] | None = None) -> None:
        if gpu_likely():
            raise LabUnavailable("a process that has used a GPU cannot be forked")
        if device == "cuda":
            supported_torch()
        self._directory = tempfile.TemporaryDirectory(prefix="dsfix-preload-")
        scratch = Path(self._directory.name)
        path = str(scratch / "socket")
        with (scratch / "errors").open("w+", encoding="utf-8", errors="replace") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), path, device, *map(str, scripts)],
                # otherwise torch 2.3's inductor starts a pool of threads, which a fork would lose
                env={
                    **isolated_environment(scratch),
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                    **({"DSFIX_DISABLE": "1"} if environment is None else environment),
                },
                cwd=scratch,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            answer = self._process.stdout.readline()
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
        if not answer:
            self.close()
            raise LabUnavailable(f"the process that preloads torch has ended: {last}")
        self.modules = frozenset(json.loads(answer))
        self._path = path

    def command(self, module: str) -> tuple[str, ...]:
        """The command that starts a rank, which calls `main` of `module` with the arguments appended to it."""
        return (sys.executable, "-I", "-S", str(_RANK), self._path, module)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
        self._directory.cleanup()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
