"""Progress on standard error: one line per finished step, on a terminal also the step under way."""

from __future__ import annotations

import contextlib
import sys
import time


class Progress:
    """`start` names the current step of `steps`, None if their number is unknown; `done` reports its result and counts
    steps as finished, with the time that is left if they are `alike`."""

    def __init__(self, steps: int | None, alike: bool = False) -> None:
        self._of, self._finished, self._what = "" if steps is None else f"/{steps}", 0, ""
        self._steps, self._began = steps if steps and alike else 0, time.monotonic()

    def start(self, what: str) -> None:
        self._what = what
        if sys.stderr is not None and sys.stderr.isatty():
            self._print(f"[{self._finished + 1}{self._of}] {what} ...", "\r")

    def done(self, result: str, steps: int = 1) -> None:
        self._finished += steps
        if self._finished < self._steps:
            seconds = (time.monotonic() - self._began) * (self._steps / self._finished - 1)
            result += f", about {f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} minutes'} left"
        self._print(f"[{self._finished}{self._of}] {self._what}: {result}", "\n")

    def _print(self, text: str, end: str) -> None:
        if sys.stderr is not None:  # None: closed by the caller
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                print(text, end=end, file=sys.stderr, flush=True)
