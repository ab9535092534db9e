"""The logger "dsfix": uses the application's handlers if logging is configured, else standard error."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import sys

logger = logging.getLogger("dsfix")

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
_ANNOUNCED = "_DSFIX_ANNOUNCED"
_occurrences: collections.Counter[str] = collections.Counter()


class _FallbackHandler(logging.Handler):
    """Writes to the current sys.stderr unless the application has configured logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # standard error is closed
                print(self.format(record), file=sys.stderr, flush=True)


def set_up(level: int) -> None:
    """Gives the logger its level and its fallback handler, once."""
    logger.setLevel(level)
    if not logger.handlers:
        handler = _FallbackHandler()
        handler.setFormatter(logging.Formatter("[dsfix] %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def rank() -> int:
    """This process's global rank from the launcher's environment; 0 without a launcher."""
    for name in _RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdecimal():
            return int(value)
    return 0


def logs_for_job() -> bool:
    """Whether this process has rank 0 and was not started by one that has announced the job."""
    return rank() == 0 and _ANNOUNCED not in os.environ


def info_once_per_job(message: str) -> None:
    """One INFO line per job."""
    if logs_for_job():
        os.environ[_ANNOUNCED] = "1"
        _enabled().info(message)


def info_on_rank_zero(message: str) -> None:
    """One INFO line, on rank 0."""
    if rank() == 0:
        _enabled().info(message)


def warn(message: str) -> None:
    _enabled().warning(message)


def warn_repeatedly(kind: str, message: str) -> None:
    """One WARNING on rank 0 at the 1st, 10th, 100th … time of its kind: for what may happen in every step.

    Patches call it from the code that they edit. It reads no tensor, and each rank may call it or not.
    """
    _occurrences[kind] += 1
    times = _occurrences[kind]
    if rank() == 0 and str(times).strip("0") == "1":
        warn(message if times == 1 else f"{message} ({times} times by now)")


def _enabled() -> logging.Logger:
    logger.disabled = False  # logging.config disables, by default, every logger that it does not name
    return logger
