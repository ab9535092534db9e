"""A patched engine and the unpatched one of the fixed release, training alternately."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from children import Broken

WINDOWS = 20
MEMORY = 8  # MiB by which memory may grow after the first window, beyond the growth of the other engine
OBJECTS = 0.05  # per step, likewise
TIME = 1.1  # limit of patched / unpatched time of a step, at the end relative to the beginning
COLUMNS = ("engine", "patches", "memory", "grows by", "Python objects", "CPU time of a step", "last / first quarter")


class Growth(NamedTuple):
    """After the first window: MiB, Python objects."""

    memory: float
    objects: int


NONE = Growth(0, 0)


def steps(options: argparse.Namespace) -> str:
    """Run the steps of each engine and return the report. Raises Broken."""
    window = options.steps // WINDOWS
    engines = [Engine("patched")]
    if options.fixed:
        engines.append(Engine("unpatched", PYTHONPATH=str(options.fixed.absolute()), DSFIX_DISABLE="1"))
    try:
        for _ in range(WINDOWS):
            for engine in engines:
                engine.train(window)
    finally:
        for engine in engines:
            engine.process.kill()
            engine.process.wait()
    patched, other = engines[0].growth(), engines[1].growth() if options.fixed else NONE
    if patched.memory - other.memory > MEMORY or patched.objects - other.objects > OBJECTS * options.steps:
        raise Broken(f"memory grows by {patched.memory:.1f} MiB and {patched.objects} objects, unpatched by {other}")
    turns = zip(*(engine.seconds() for engine in engines))
    slower = last_by_first([one / another for one, another in turns]) if options.fixed else 1
    if slower > TIME:
        raise Broken(f"relative to the unpatched engine, a step slows down to {slower:.2f} times its initial time")
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(engine.row(window) for engine in engines)]
    about = f"{options.steps:,} steps of ZeRO-3 with optimizer offload and gradient clipping, the engines by turns:\n\n"
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    compared = f"\n\nOver the run, the ratio of their step times changed by a factor of {slower:.2f}."
    return about + table + (compared if options.fixed else "")


def last_by_first(windows: Sequence[float]) -> float:
    """The median of the last quarter over that of the first, without the first window."""
    settled = windows[1:]
    quarter = len(settled) // 4
    return statistics.median(settled[-quarter:]) / statistics.median(settled[:quarter])


class Engine:
    """A process that trains on demand."""

    def __init__(self, name: str, **variables: str) -> None:
        self.name = name
        self.windows: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("trains.py"))],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self.answer()

    def train(self, steps: int) -> None:
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        self.windows.append(self.answer())

    def answer(self) -> dict[str, Any]:
        """The next JSON line of the process. Raises Broken if it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # DeepSpeed also logs to standard output
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise Broken(f"the {self.name} engine has ended")

    def seconds(self) -> list[float]:
        """CPU time of each window."""
        return [window["seconds"] for window in self.windows]

    def growth(self) -> Growth:
        first, last = self.windows[1], self.windows[-1]
        return Growth((last["memory"] - first["memory"]) / 2**20, last["objects"] - first["objects"])

    def row(self, steps: int) -> list[str]:
        grown = self.growth()
        return [
            f"{self.name}, deepspeed {self.about['deepspeed']}, {self.about['device']}",
            str(self.about["applied"]),
            f"{self.windows[-1]['memory'] / 2**20:.0f} MiB",
            f"{grown.memory:.1f} MiB",
            f"{grown.objects:+d}",
            f"{statistics.median(self.seconds()) / steps * 1e3:.2f} ms",
            f"{last_by_first(self.seconds()):.2f}",
        ]
