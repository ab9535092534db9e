"""The test's end of a server process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("server.py")


class Server:
    """Forks a process per request from one that has imported `preloaded`."""

    def __init__(self, environment: Mapping[str, str], directory: Path, preloaded: Sequence[str] = ()) -> None:
        self._log = directory / "server.log"
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), *preloaded],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                cwd=directory,
                text=True,
            )

    def run(
        self, arguments: Mapping[str, Any], path: Sequence[Path], environment: Mapping[str, str], timeout: int = 180
    ) -> dict[str, Any]:
        """What harness.process.carry_out returned for `arguments`; fails the test where it did not get to its end."""
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
        found: dict[str, Any] = answer["result"]
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
