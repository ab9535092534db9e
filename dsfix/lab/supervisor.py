"""Runs the ranks of one job and leaves none behind. `ranks.launch` starts this script; standard library only.

    supervisor.py SPECIFICATION RESULTS

The specification is JSON: argv, environments (one per rank), directory, timeout, cwd. Each rank leads its own session
and writes to DIRECTORY/RANK.out and .err. Standard input is a pipe held open by the launcher: when it closes, because
the launcher is done or dead, all ranks are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

GRACE = 3.0  # seconds for the other ranks to report after one has failed
_POLL = 0.02


class Rank:
    """One process that leads a session, including all its descendants in it."""

    def __init__(self, argv: list[str], environment: dict[str, str], cwd: str, path: str) -> None:
        with open(path + ".out", "wb") as out, open(path + ".err", "wb") as err:
            self.process = subprocess.Popen(
                argv, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        self.started = time.monotonic()
        self.seconds: float | None = None
        self.timed_out = False

    @property
    def running(self) -> bool:
        return self.seconds is None

    def poll(self) -> None:
        """Checks whether the process has ended, and kills what it left running."""
        # WNOWAIT: not reaped yet, so its process group id cannot be reused
        if self.running and os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._end()

    def kill(self) -> None:
        if self.running:
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.seconds = time.monotonic() - self.started

    def result(self) -> dict[str, Any]:
        return {"returncode": self.process.returncode, "seconds": self.seconds, "timed_out": self.timed_out}


def supervise(ranks: list[Rank], timeout: float) -> None:
    """Waits until all ranks have ended: by themselves, after a failure, at the time limit, or with the launcher."""
    deadline = time.monotonic() + timeout
    failed = False
    while True:
        for rank in ranks:
            rank.poll()
        if not any(rank.running for rank in ranks):
            return
        if not failed and any(rank.process.returncode for rank in ranks):
            failed = True
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() >= deadline:
            for rank in ranks:
                rank.timed_out = rank.running and not failed
                rank.kill()
            return
        if select.select([sys.stdin], [], [], _POLL)[0]:
            return


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        specification = json.load(file)
    ranks: list[Rank] = []
    report: dict[str, Any] = {}
    try:
        for number, environment in enumerate(specification["environments"]):
            path = os.path.join(specification["directory"], str(number))
            ranks.append(Rank(specification["argv"], environment, specification["cwd"], path))
        supervise(ranks, specification["timeout"])
    except OSError as error:
        report["error"] = str(error)
    except KeyboardInterrupt:
        report["error"] = "interrupted"
    finally:
        for rank in ranks:
            rank.kill()
    report["ranks"] = [rank.result() for rank in ranks]
    try:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump(report, file)
    except OSError as error:
        sys.exit(f"the results of the ranks cannot be written: {error}")


if __name__ == "__main__":
    main()
