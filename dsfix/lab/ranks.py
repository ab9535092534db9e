"""Starts the ranks of a job on this machine and never leaves one behind (Linux only); the variables of a rank."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsfix.lab.distributions import LabUnavailable

# a directory shared by the ranks of one launch; the launcher removes it
SCRATCH = "DSFIX_LAB_TMP"

# below Linux's ephemeral range: an outgoing connection could take the port before rank 0 does
_PORTS = range(20000, 32000)
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
# not `-m`, which puts the current directory, possibly a checkout of dsfix, before installed packages
_MAIN = "import sys; sys.path[:1] == [''] and sys.path.pop(0); from {} import main; sys.exit(main(*sys.argv[1:]))"


def fresh_command(module: str) -> tuple[str, ...]:
    """The command of a fresh process that calls `main` of a module with the arguments appended to it."""
    return (sys.executable, "-c", _MAIN.format(module))


@dataclass(frozen=True)
class RankResult:
    """How one rank ended: returncode is negative for a signal; timed_out if the time limit killed it."""

    rank: int
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool


def launch(
    argv: Sequence[str],
    ranks: int = 2,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> list[RankResult]:
    """Runs `argv` as `ranks` processes with RANK, WORLD_SIZE etc. and waits for all; returns one result per rank.

    env, cwd: the complete environment and the directory of the ranks; by default those of this process. If one rank
    fails, the others are killed a few seconds later; after `timeout` seconds all are. A rank is killed with its whole
    process group. The ranks also die with this process. Raises LabUnavailable if the program cannot be started.
    """
    if not sys.platform.startswith("linux"):
        raise LabUnavailable(f"starting ranks requires Linux; this is {sys.platform}")
    if ranks < 1:
        raise ValueError(f"a job needs at least one rank, got {ranks}")
    port = free_port()
    common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(os.environ if env is None else env)}
    with tempfile.TemporaryDirectory(prefix="dsfix-ranks-") as directory:
        specification, results_file = Path(directory, "specification.json"), Path(directory, "results.json")
        scratch = Path(directory, "scratch")
        scratch.mkdir()
        common[SCRATCH] = str(scratch)
        specification.write_text(
            json.dumps(
                {
                    "argv": [os.fspath(a) for a in argv],
                    "environments": [{**common, **rank_environment(rank, ranks, port)} for rank in range(ranks)],
                    "directory": directory,
                    "timeout": timeout,
                    "cwd": os.path.abspath(cwd or "."),
                }
            ),
            encoding="utf-8",
        )
        error = _supervise([sys.executable, "-I", str(_SUPERVISOR), str(specification), str(results_file)])
        try:
            ended = json.loads(results_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise LabUnavailable(error or "the supervisor of the ranks was killed") from None
        if "error" in ended:
            raise LabUnavailable(f"the ranks cannot be started: {ended['error']}")
        return [
            RankResult(rank=rank, stdout=_read(directory, rank, "out"), stderr=_read(directory, rank, "err"), **result)
            for rank, result in enumerate(ended["ranks"])
        ]


def _supervise(command: list[str]) -> str:
    """Runs the supervisor; returns the last line of its standard error, "" if it has none."""
    # in its own session: Ctrl-C in the terminal reaches only this process, which then closes the pipe
    pipe = subprocess.PIPE
    supervisor = subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True, start_new_session=True)
    assert supervisor.stdin is not None
    assert supervisor.stderr is not None
    try:
        errors = supervisor.stderr.read()
    finally:
        supervisor.stdin.close()
        supervisor.wait()
        supervisor.stderr.close()
    return (errors.strip().splitlines() or [""])[-1]


def _read(directory: str, rank: int, kind: str) -> str:
    return Path(directory, f"{rank}.{kind}").read_text(encoding="utf-8", errors="replace")


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that a launcher sets for one of `ranks` processes on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def complete_rank_environment(environment: MutableMapping[str, str]) -> None:
    """Makes this process a job of one rank if no launcher has set RANK and WORLD_SIZE."""
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        environment.update(rank_environment(0, 1, free_port()))


def free_port() -> int:
    """A free TCP port on 127.0.0.1. Raises LabUnavailable if none is found."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise LabUnavailable("no free TCP port on 127.0.0.1")
