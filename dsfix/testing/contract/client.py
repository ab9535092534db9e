"""The client of a server process."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("contract_process") / "server.py"


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
        found: list[Any] = answer["result"]
        return found

    def close(self) -> None:
        if "_process" not in vars(self):
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
