"""Progress of a run of the matrix, on standard error: a bar on a terminal, otherwise a line every 30 seconds."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_PAUSE = 30.0  # seconds between two lines


class Meter:
    """Counts finished cells up to `total`. A context manager."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total = total
        self._done = 0
        self._started = self._printed = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("cells", total=total)

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def advance(self) -> None:
        """Count one more finished cell."""
        self._done += 1
        self._bar.advance(self._task)
        now = time.monotonic()
        if self._bar.disable and (now - self._printed > _PAUSE or self._done == self._total):
            self._printed = now
            left = (now - self._started) / self._done * (self._total - self._done)
            self.say(f"{self._done} of {self._total} cells, {_duration(now - self._started)}, left: {_duration(left)}")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
