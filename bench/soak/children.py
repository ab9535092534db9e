"""Forks children of this process, which has imported torch but neither dsfix nor DeepSpeed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Callable

LIMIT = 600  # seconds for a child, on a busy machine


class Broken(Exception):
    """An expectation was not met; the message says which."""


def forked(work: Callable[[], Any], scratch: Path) -> int:
    """The pid of a child that does this work, with its DSFIX_REPORT, cache and bytecode below `scratch`."""
    import torch  # noqa: F401  once, for all children

    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.alarm(LIMIT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ.update(DS_ACCELERATOR="cpu", LOCAL_SIZE="1", DSFIX_LOG_LEVEL="WARNING")
        os.environ.update(DSFIX_REPORT=str(scratch / "reports"), DSFIX_CACHE=str(scratch / "cache"))
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(scratch / "bytecode")
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, what: str) -> None:
    """Wait for the child. Raises Broken unless it succeeded."""
    _, status = os.waitpid(child, 0)
    if status:
        how = f"status {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"
        raise Broken(f"{what} ended with {how}")
