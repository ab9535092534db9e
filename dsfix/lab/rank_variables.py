"""The environment variables of a rank."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import MutableMapping

from dsfix.lab.distributions import LabUnavailable

# a directory shared by the ranks of one launch; the launcher removes it
SCRATCH = "DSFIX_LAB_TMP"

# below Linux's ephemeral range: an outgoing connection could take the port before rank 0 does
_PORTS = range(20000, 32000)


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
