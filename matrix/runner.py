"""Shared by commands: options, many tasks in parallel that all end on interruption, complaints."""

from __future__ import annotations

import argparse
import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped,import-not-found,unused-ignore]

from dsfix.cli.exits import OK, TROUBLE
from dsfix.lab.preload import ForkServer

_PAUSE = 30.0  # seconds between two lines of Progress
Task = TypeVar("Task")
Answer = TypeVar("Answer")


def jobs(text: str) -> int:
    """The type of the option --jobs."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def print_errors(name: str, sentences: Iterable[str]) -> int:
    """Print the sentences to standard error; 1 if there are any, else 0."""
    complaints = list(sentences)
    for sentence in complaints:
        print(f"{name}: {sentence}", file=sys.stderr)
    return TROUBLE if complaints else OK


class Servers(contextlib.ExitStack):
    """The processes from which others are forked, each started when it is first needed; thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[Hashable, ForkServer] = {}
        self._lock = threading.Lock()

    def server(self, device: str, *scripts: Path, **environment: str) -> ForkServer:
        """Raises LabUnavailable."""
        key = (device, scripts, tuple(environment.items()))
        with self._lock:
            if key not in self._started:
                self._started[key] = self.enter_context(ForkServer(device, *scripts, environment=environment))
            return self._started[key]


class Progress:
    """Prints now and then on standard error how many of `total` cells are finished."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._started = self._printed = time.monotonic()

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def advance(self) -> None:
        """Count one more finished cell."""
        self._done += 1
        now = time.monotonic()
        if now - self._printed > _PAUSE or self._done == self._total:
            self._printed = now
            left = (now - self._started) / self._done * (self._total - self._done)
            self.say(f"{self._done} of {self._total} cells, {_duration(now - self._started)}, left: {_duration(left)}")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Handles SIGINT, which is ignored in the background and which children would inherit ignored, SIGTERM, SIGHUP."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def run_parallel(
    tasks: Collection[Task], work: Callable[[Task], Answer], jobs: int
) -> Iterator[Iterator[tuple[Task, Answer]]]:
    """Yields (task, result) as tasks complete, `jobs` in parallel. Call it in the main thread.

    Exceptions from `work` propagate. An error, SIGINT, SIGTERM or SIGHUP ends all child processes.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: queue.SimpleQueue[tuple[Task, Answer] | BaseException] = queue.SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        with contextlib.suppress(queue.Empty):
            while not stop.is_set():
                task = waiting.get_nowait()
                try:
                    done.put((task, work(task)))
                except BaseException as error:
                    done.put(error)

    def results() -> Iterator[tuple[Task, Answer]]:
        for _ in tasks:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(jobs, len(tasks)))]
    with interruptible():
        for thread in threads:
            thread.start()
        try:
            yield results()
        except BaseException:
            stop.set()
            _end(threads)
            raise


def _end(threads: Sequence[threading.Thread]) -> None:
    """Interrupt the processes that the threads wait for until all have ended; a supervisor ends its ranks."""
    while any(thread.is_alive() for thread in threads):
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join(timeout=0.5)
