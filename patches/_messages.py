"""What a logger says."""

from __future__ import annotations

import logging


class Messages(logging.Handler):
    """Collects the messages of at least this handler's level."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
