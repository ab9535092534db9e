"""One cell of the matrix: a patch's reproduction on one release, without the patch and with it."""

from __future__ import annotations

import datetime
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dsfix.catalogue.registry import Entry
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.preload import ForkServer
from dsfix.lab.ranks import fresh_command
from dsfix.lab.reproduction import Sighting, run
from matrix import environments, proofs
from matrix.proofs import Cell, Run, State

TIMEOUT = 300.0  # seconds, for one reproduction
_LONGEST_DETAIL = 800  # characters
_REPRODUCTION = "dsfix.lab.reproduction"


@dataclass(frozen=True)
class Task:
    """One cell to run. without: the known run without the patch, if the reproduction is unchanged."""

    entry: Entry
    release: str
    without: Run | None = None


class Cells(ExitStack):
    """Runs cells; thread-safe. A context manager.

    schedule: overrides the schedule that reproductions choose; "": no override.
    """

    def __init__(self, schedule: str = "") -> None:
        super().__init__()
        self._schedule = schedule
        self._lock = threading.Lock()
        self._preloaded: dict[str, ForkServer | None] = {}
        self._broken: dict[str, str] = {}

    def run(self, entry: Entry, release: str, fresh: bool = False, without: Run | None = None) -> Cell:
        """Run one cell, by default in preloaded processes; repeated in fresh ones unless the result is conclusive.

        fresh: use fresh processes immediately. without: the known run without the patch, which is then not repeated,
        with a schedule not even in fresh processes.
        Raises environments.Unavailable if the release cannot be installed or a process cannot be started.
        """
        path = self._installed(release)
        preloaded = None if fresh else self.preloaded_for(entry)
        if preloaded is not None:
            cell = _cell(entry, release, path, preloaded, without, self._schedule)
            if proofs.judge(entry.patch, cell)[0] in (State.FIXED, State.NOT_AFFECTED):
                return cell
        return _cell(entry, release, path, None, without if self._schedule else None, self._schedule)

    def attempt(self, task: Task) -> Cell | str:
        """The task's cell, or why there is none, in one sentence."""
        try:
            return self.run(task.entry, task.release, without=task.without)
        except environments.Unavailable as reason:
            return str(reason)
        except OSError as error:  # from the scratch directory, e.g. a full disk: other cells may still succeed
            return f"{task.entry.id} on deepspeed {task.release} could not be run: {error}"

    def _installed(self, release: str) -> Path:
        """The release's directory; a failed installation is not tried again."""
        if release in self._broken:
            raise environments.Unavailable(self._broken[release])
        try:
            return environments.installed(release)
        except environments.Unavailable as reason:
            self._broken[release] = str(reason)
            raise

    def preloaded_for(self, entry: Entry) -> ForkServer | None:
        """The process that forks the patch's ranks; None if each has to be a fresh one."""
        device = entry.patch.device
        with self._lock:
            if device not in self._preloaded:
                try:
                    self._preloaded[device] = self.enter_context(ForkServer(device))
                except LabUnavailable as reason:
                    print(f"{device}: each process imports torch itself: {reason}", file=sys.stderr)
                    self._preloaded[device] = None
            server = self._preloaded[device]
        return server if server is not None and server.modules.isdisjoint(entry.patch.modules) else None


def _cell(
    entry: Entry, release: str, path: Path, preloaded: ForkServer | None, known: Run | None = None, schedule: str = ""
) -> Cell:
    without = [] if known is not None else [_sighting(entry, release, False, path, preloaded, schedule)]
    patched = _sighting(entry, release, True, path, preloaded, schedule)
    reported = next((each for each in (patched, *without) if each.versions), patched)
    return Cell(
        without=known if known is not None else _run(without[0]),
        patched=_run(patched),
        versions={"deepspeed": release, **{name: version for name, version in reported.versions.items() if version}},
        device=reported.device,
        preloaded=preloaded is not None,
        date=datetime.date.today().isoformat(),
    )


def _sighting(
    entry: Entry, release: str, patched: bool, path: Path, preloaded: ForkServer | None, schedule: str
) -> Sighting:
    command = fresh_command(_REPRODUCTION) if preloaded is None else preloaded.command(_REPRODUCTION)
    sighting = run(entry.id, patched, TIMEOUT, path, command, schedule)
    if sighting.outcome == "cannot-tell" and not sighting.versions:  # not the reproduction's answer
        raise environments.Unavailable(f"{entry.id} on deepspeed {release} could not be run: {sighting.detail}")
    return sighting


def _run(sighting: Sighting) -> Run:
    detail = proofs.without_paths(sighting.detail)
    if len(detail) > _LONGEST_DETAIL:
        detail = detail[: _LONGEST_DETAIL - 1] + "…"
    return Run(sighting.outcome, sighting.patch, detail)
