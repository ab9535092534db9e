"""Run many cells in parallel, and end them all on interruption."""

from __future__ import annotations

import argparse
import contextlib
import queue
import signal
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped,import-not-found,unused-ignore]

from dsfix.catalogue.registry import Entry
from dsfix.lab.cuda.schedule import parse
from matrix.cells import Cells
from matrix.environments import Unavailable
from matrix.proofs import Cell, Run


@dataclass(frozen=True)
class Task:
    """One cell to run. without: the known run without the patch, if the reproduction is unchanged."""

    entry: Entry
    release: str
    without: Run | None = None


@dataclass(frozen=True)
class Result:
    """A task's cell, or None and one sentence why."""

    task: Task
    cell: Cell | None
    trouble: str = ""


def jobs(text: str) -> int:
    """The type of the option --jobs."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def schedule(text: str) -> str:
    """The type of the option --schedule."""
    try:
        parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def results(tasks: Sequence[Task], cells: Cells, jobs: int) -> Generator[Result, None, None]:
    """The results as they complete, with `jobs` cells in parallel; call it in the main thread.

    All processes are ended when the iterator is closed or interrupted by SIGINT, SIGTERM or SIGHUP.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # children would inherit an ignored signal
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while not stop.is_set():
                done.put(_result(waiting.get_nowait(), cells))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(tasks)))]
    for thread in threads:
        thread.start()
    try:
        for _ in tasks:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        _end(threads)


def _result(task: Task, cells: Cells) -> Result | BaseException:
    try:
        return Result(task, cells.run(task.entry, task.release, without=task.without))
    except Unavailable as reason:
        return Result(task, None, str(reason))
    except OSError as error:  # from the scratch directory, e.g. a full disk: other cells may still succeed
        return Result(task, None, f"{task.entry.id} on deepspeed {task.release} could not be run: {error}")
    except BaseException as error:
        return error


def _end(threads: Sequence[threading.Thread]) -> None:
    """Interrupt the processes that the threads wait for until all have ended; a supervisor ends its ranks."""
    while any(thread.is_alive() for thread in threads):
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join(timeout=0.5)
