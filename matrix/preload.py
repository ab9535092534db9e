"""A process that has torch already and is forked for each rank, so that a cell does not wait for torch's import.

In the forked rank dsfix and DeepSpeed are imported anew, but after torch. So a patch of what is preloaded does not run
here, and what a rank here says against a claim has to be repeated in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from dsfix.lab.cuda.compiling import supported_torch
from dsfix.lab.distributions import gpu_visible, torch_build
from dsfix.lab.errors import LabUnavailable
from dsfix.lab.isolation import isolated
from dsfix.patch import Patch

_SERVER = Path(__file__).with_name("preload_server.py")
_RANK = Path(__file__).with_name("preload_rank.py")


class Preloaded:
    """The process, for ranks on "cuda" (emulated) or "cpu". A context manager; ends with this process, too.

    scripts: are run there once, with these variables of the environment, for more that ranks need not wait for; the
    dsfix that the last one imports is theirs. Raises LabUnavailable where there can be none.
    """

    def __init__(self, device: str, *scripts: Path, environment: Mapping[str, str] | None = None) -> None:
        if torch_build().gpu is not None and gpu_visible():
            raise LabUnavailable("a process that has used a GPU cannot be forked")
        if device == "cuda":
            supported_torch()
        self._directory = tempfile.TemporaryDirectory(prefix="dsfix-preload-")
        scratch = Path(self._directory.name)
        path = str(scratch / "socket")
        # -P: not this directory on sys.path
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SERVER), path, device, *map(str, scripts)],
            # torch 2.3's inductor starts a pool of threads otherwise, which a fork would lose
            env={
                **isolated(scratch),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                **({"DSFIX_DISABLE": "1"} if environment is None else environment),
            },
            cwd=scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            self.close()
            raise LabUnavailable("the process that preloads torch has ended")
        self._modules = frozenset(json.loads(told))
        self._path = path

    def command(self, module: str) -> tuple[str, ...]:
        """What starts a rank that imports `module` first and calls its `main` with the arguments that are added."""
        return (sys.executable, "-I", "-S", str(_RANK), self._path, module)

    def takes(self, patch: Patch) -> bool:
        """Whether a rank here is for this patch what a fresh process is: none of its modules is there already."""
        return self._modules.isdisjoint([*patch.modules, patch.before or ""])

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
        self._directory.cleanup()

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
