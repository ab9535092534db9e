"""Runs other programs with a time limit; whatever they do, the result is a `ProgramOutput`."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Optional, Union

_MAX_BYTES = 1 << 20  # of one stream; a program that writes more is killed
_AFTER_KILL = 2.0  # seconds; a process that waits for a broken driver cannot be killed
_running: set[subprocess.Popen[bytes]] = set()

Input = Optional[Union[int, IO[bytes]]]


@dataclass(frozen=True)
class ProgramOutput:
    """A program's output. `problem`: why it failed to run or to finish, one sentence, or ""."""

    output: str = ""
    errors: str = ""
    status: int | None = None
    problem: str = ""
    timed_out: bool = False

    @property
    def first_line(self) -> str:
        """The first non-blank line of its output, else of its errors, else the problem."""
        return first_line(self.output) or first_line(self.errors) or self.problem


def run_program(
    argv: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None, stdin: Input = None
) -> ProgramOutput:
    """Runs a program in its own session; after the time limit, it is killed together with its children."""
    name = os.path.basename(argv[0])
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return ProgramOutput(problem=f"{name} cannot be run: {getattr(error, 'strerror', None) or error}")
    _running.add(process)
    buffers = (bytearray(), bytearray())
    readers = [
        threading.Thread(target=_keep, args=(stream, into, process), daemon=True)
        for stream, into in zip((process.stdout, process.stderr), buffers)
    ]
    deadline = time.monotonic() + seconds
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
    # kill before waiting: after that, the process id may be reused
    timed_out = any(reader.is_alive() for reader in readers) or not _ends(process, deadline - time.monotonic())
    if timed_out:
        _kill(process)
        for reader in readers:
            reader.join(_AFTER_KILL)
    gone = _ends(process, _AFTER_KILL)
    _running.discard(process)
    output, errors = (bytes(buffer).decode(errors="replace") for buffer in buffers)
    status = process.returncode
    problem = ""
    if timed_out:
        problem = f"{name} did not finish within {seconds:g} s"
        if not gone:
            problem += " and cannot be killed"
    elif status < 0:
        problem = f"{name} was killed by {_signal(-status)}"
    return ProgramOutput(output, errors, status, problem, timed_out)


def end_all() -> None:
    for process in list(_running):
        if process.returncode is None:
            _kill(process)


def first_line(text: str) -> str:
    """Returns the first non-blank line, without non-printable characters."""
    for line in text.splitlines():
        shown = "".join(character for character in line if character.isprintable()).strip()
        if shown:
            return shown[:300]
    return ""


def _keep(stream: IO[bytes], into: bytearray, process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            chunk = os.read(stream.fileno(), 65536)
        except (OSError, ValueError):
            return
        if not chunk:
            return
        into += chunk
        if len(into) > _MAX_BYTES:
            _kill(process)
            return


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        pass


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
