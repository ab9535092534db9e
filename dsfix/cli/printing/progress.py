"""Progress on standard error: a bar on a terminal, one line per finished step elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Protocol


class Progress(Protocol):
    """`start` names the current step; `done` reports its result and counts `steps` as finished."""

    def start(self, what: str) -> None: ...

    def done(self, result: str, steps: int = 1) -> None: ...


@contextlib.contextmanager
def shown(steps: int | None, alike: bool = False) -> Iterator[Progress]:
    """Progress over `steps` steps, None if their number is unknown, until the context ends; with the time that is left
    if the steps are `alike`."""
    if sys.stderr is None:  # closed by the caller
        yield _Silent()
    elif not sys.stderr.isatty() or os.environ.get("TERM") in (None, "", "dumb", "unknown"):
        yield _Lines(steps, alike)
    else:
        with _bar(steps, alike) as bar:
            yield bar


class _Silent:
    def start(self, what: str) -> None:
        pass

    def done(self, result: str, steps: int = 1) -> None:
        pass


class _Lines:
    def __init__(self, steps: int | None, alike: bool) -> None:
        self._of, self._finished, self._what = "" if steps is None else f"/{steps}", 0, ""
        self._steps, self._began = steps if steps and alike else 0, time.monotonic()

    def start(self, what: str) -> None:
        self._what = what

    def done(self, result: str, steps: int = 1) -> None:
        self._finished += steps
        if self._finished < self._steps:
            seconds = (time.monotonic() - self._began) * (self._steps / self._finished - 1)
            result += f", about {f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} minutes'} left"
        with contextlib.suppress(OSError, ValueError):  # the reader is gone
            print(f"[{self._finished}{self._of}] {self._what}: {result}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _bar(steps: int | None, alike: bool) -> Iterator[Progress]:
    from rich import progress
    from rich.console import Console

    columns: tuple[progress.ProgressColumn, ...] = (
        progress.SpinnerColumn(),
        progress.MofNCompleteColumn(),
        progress.BarColumn(bar_width=20),
        progress.TimeElapsedColumn(),
        *([progress.TextColumn("left:"), progress.TimeRemainingColumn()] if alike else []),
        progress.TextColumn("{task.description}", markup=False),
    )
    drawn = progress.Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with drawn as live:
        task = live.add_task("", total=steps)

        class Bar:
            def start(self, what: str) -> None:
                live.update(task, description=what)

            def done(self, result: str, steps: int = 1) -> None:
                live.advance(task, steps)

        yield Bar()
