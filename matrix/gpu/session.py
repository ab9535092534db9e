"""Runs what the folder holds within a time limit; results are written after each. Imports no torch."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsfix.catalogue.registry import catalogue
from dsfix.lab.ranks import fresh_command
from dsfix.settings import write_atomically
from matrix.gpu import choice, items
from matrix.gpu.machine import Machine

NOT_RUN = {"state": "not run", "why": "there was no time for it", "seconds": 0.0}
PROGRAM = "program"
_LEAST = 15.0  # seconds reserved at the end; nothing is started that cannot finish


@dataclass(frozen=True)
class Item:
    """kind: "program", "audit" or "cell". run: returns the item's result, or a result for each of its parts."""

    kind: str
    name: str
    release: str
    run: Callable[[], dict[str, Any]]


class Session:
    """The results so far, in a file. Results of the same folder and machine are not run again."""

    def __init__(self, out: Path, facts: dict[str, Any], todo: list[Item], until: float) -> None:
        self._out, self._facts, self._until = out, facts, until
        self._before, done = _earlier(out, facts)
        self._started = time.monotonic()
        self._waiting: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        self._rows = [done.get(_key(item), [{**_head(item), **NOT_RUN}]) for item in todo]
        for number, item in enumerate(todo):
            if _key(item) not in done:
                self._waiting.put((number, item))
        self._lock = threading.Lock()

    def run(self, jobs: int) -> None:
        """Returns when everything is done or the time is over; running items then end with this process."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._until - time.monotonic()))
        with self._lock:
            self._write()
            self._until = 0.0  # a late result changes nothing

    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self._rows for row in rows]

    def _work(self) -> None:
        while time.monotonic() < self._until - _LEAST:
            try:
                number, item = self._waiting.get_nowait()
            except queue.Empty:
                return
            rows = _results(item)
            with self._lock:
                if time.monotonic() < self._until:
                    self._rows[number] = rows
                    self._write()
                    for row in rows:
                        print(f"{row['name']} on deepspeed {row['release']}: {row['state']}", flush=True)

    def _write(self) -> None:
        seconds = round(self._before + time.monotonic() - self._started, 1)
        text = json.dumps({**self._facts, "seconds": seconds, "items": self.rows()}, indent=1)
        write_atomically(self._out, f"{text}\n".encode())


def _head(item: Item) -> dict[str, Any]:
    return {"kind": item.kind, "name": item.name, "release": item.release}


def _key(item: Item) -> tuple[str, ...]:
    """Which rows are the item's: those of programs have names of their own."""
    return (item.kind, item.release) if item.kind == PROGRAM else (item.kind, item.release, item.name)


def _earlier(out: Path, facts: dict[str, Any]) -> tuple[float, dict[tuple[str, ...], list[dict[str, Any]]]]:
    """Seconds and finished rows of the file, if it has such results; "failed" and "not run" ones are run again."""
    try:
        data = json.loads(out.read_text(encoding="utf-8"))
        if any(data[name] != each for name, each in json.loads(json.dumps(facts)).items()):
            return 0.0, {}
        done: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in data["items"]:
            if row["state"] not in (NOT_RUN["state"], "failed"):
                key = (row["kind"], row["release"], *([] if row["kind"] == PROGRAM else [row["name"]]))
                done.setdefault(key, []).append(row)
        return float(data["seconds"]), done
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, {}


def _results(item: Item) -> list[dict[str, Any]]:
    started = time.monotonic()
    try:
        result = item.run()
    except Exception as error:  # of one item: the others can still be run
        result = {"state": "failed", "why": f"{type(error).__name__}: {error}"[:800]}
    seconds = {"seconds": round(time.monotonic() - started, 1)}
    if "state" in result:
        return [{**_head(item), **result, **seconds}]
    return [{**_head(item), "name": name, **each, **seconds} for name, each in result.items()]


def main(folder: str, work: str, out: str, until: str) -> int:
    """work: for the releases. until: in seconds since the epoch. 1 if nothing could be run."""
    manifest = json.loads(Path(folder, "manifest.json").read_text(encoding="utf-8"))
    done = subprocess.run(fresh_command("matrix.gpu.machine"), capture_output=True, text=True)
    if done.returncode:
        print((done.stderr.splitlines() or ["torch cannot be started"])[-1], file=sys.stderr)
        return 1
    machine = Machine(**json.loads(done.stdout.splitlines()[-1]))
    todo = _todo(machine, manifest, Path(folder), Path(work))
    facts = {"machine": asdict(machine), "fingerprints": manifest["fingerprints"]}
    print(f"{machine.device}, torch {machine.versions['torch']}: {len(todo)} items", flush=True)
    session = Session(Path(out), facts, todo, time.monotonic() + float(until) - time.time())
    try:
        session.run(machine.cores)
    except KeyboardInterrupt:  # the results so far are written
        return 130
    states = [row["state"] for row in session.rows()]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return 0


def _todo(machine: Machine, manifest: dict[str, Any], folder: Path, directory: Path) -> list[Item]:
    """In order of value."""
    newest = manifest["releases"][-1]
    releases = items.Releases(folder / "wheels", directory)
    script = folder / "programs" / "streams.py"
    audits = [
        Item("audit", name, newest, partial(items.audit, machine, config, releases, newest))
        for name, config in items.CONFIGS.items()
    ]
    cells = [
        Item("cell", entry.id, each, partial(items.cell, machine, entry, releases, each))
        for entry, each in choice.cells(catalogue().values(), manifest["releases"], machine.versions)
    ]
    return [
        Item(PROGRAM, script.stem, newest, partial(items.programs, machine, script, releases, newest)),
        *audits,
        *cells,
    ]
