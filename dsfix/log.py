"""The logger "dsfix": to the application's handlers where it has set up logging, to standard error where not."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("dsfix")

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
_ANNOUNCED = "_DSFIX_ANNOUNCED"


class _WhereNobodyListens(logging.StreamHandler):  # type: ignore[type-arg]
    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def set_up(level: int) -> None:
    """Gives the logger its level and its fallback handler, once."""
    logger.setLevel(level)
    if not logger.handlers:
        handler = _WhereNobodyListens()
        handler.setFormatter(logging.Formatter("[dsfix] %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def rank() -> int:
    """This process's global rank by its launcher's environment; 0 where there is no launcher."""
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def announce(message: str) -> None:
    """One INFO line per job: on rank 0, and not again in processes that it starts."""
    if rank() == 0 and _ANNOUNCED not in os.environ:
        os.environ[_ANNOUNCED] = "1"
        logger.info(message)
