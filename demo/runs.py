"""Runs the programs of the demonstration and reads their output."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SECONDS = 300  # time limit of a run, which takes about 15
_SETTINGS = ("DSFIX_", "DS_", "PYTHON", "HF_", "TRANSFORMERS_")  # variables of the caller that could change a run
_KEPT = ("DSFIX_CACHE", "HF_HOME")


class NotMet(Exception):
    """An expectation that was not met; the message is printed."""


def expect(met: bool, otherwise: str) -> None:
    if not met:
        raise NotMet(otherwise)


@dataclass(frozen=True)
class Run:
    """A program that has ended: its exit status and what it printed."""

    status: int
    output: str
    errors: str

    @property
    def last_error(self) -> str:
        """The last line of a traceback, without the prefix added by torch.distributed."""
        lines = [line for line in self._error_lines() if not line.startswith((" ", "[W")) and ": " in line]
        return lines[-1] if lines else "(nothing on standard error)"

    @property
    def last_frame(self) -> str:
        """The line ``File "...", line N, in function`` of the traceback where the error was raised."""
        return next((line for line in reversed(self._error_lines()) if line.startswith('  File "')), "")

    def traceback_end(self, frames: int) -> str:
        """The last `frames` frames of the traceback and the error."""
        lines = self._error_lines()
        starts = [number for number, line in enumerate(lines) if line.startswith('  File "')]
        return "\n".join(lines[starts[-frames:][0] :]) if starts else self.errors

    def losses(self) -> list[float]:
        """The losses, by step."""
        return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", self.output, re.MULTILINE)]

    def _error_lines(self) -> list[str]:
        return [re.sub(r"^\[rank0\]: ?", "", line) for line in self.errors.splitlines() if line.strip()]


def train(script: Path, steps: int, **extra: str) -> Run:
    """Runs the training script as the only rank of a job, on the machine set up by machine/sitecustomize.py.

    extra: more environment variables; its PYTHONPATH comes before that of the machine.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    paths = [*filter(None, [extra.get("PYTHONPATH")]), str(HERE / "machine")]
    fixed = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    fixed["PYTHONFAULTHANDLER"] = "1"  # if a signal ends it, standard error says where its threads were
    command = [script.name if script.parent == HERE else str(script), "--text", "../LICENSE", "--model", "model.json"]
    command += ["--deepspeed_config", "ds_config.json", "--steps", str(steps)]
    return python(command, {**rank, **extra, **fixed}, shown=extra)


def python(arguments: list[str], environment: dict[str, str], shown: dict[str, str]) -> Run:
    """Prints the command with the variables `shown`, and runs this Python with `arguments` in this directory."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
    print("$", *variables, "python", shlex.join(arguments), end="\n\n", flush=True)
    own = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_SETTINGS)}
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=HERE,
            env={**own, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotMet(f"the command did not end within {_SECONDS} seconds.") from None
    run = Run(done.returncode, done.stdout, done.stderr)
    if broken := re.search(r"^Error in sitecustomize.*\n(.*)", run.errors, re.MULTILINE):
        raise NotMet(f"the machine could not be set up: {broken[1]}")
    return run
