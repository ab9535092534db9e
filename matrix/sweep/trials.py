"""Run one config on one release, in ranks forked from a process that has imported torch and, mostly, DeepSpeed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dsfix.audit.agreement import AuditVerdict
from dsfix.audit.trial import trial
from dsfix.lab.errors import LabUnavailable
from dsfix.lab.preload import Preloaded
from dsfix.lab.ranks import fresh
from matrix import environments
from matrix.sweep import space
from matrix.sweep.space import Row

_TIMEOUT = 120.0  # seconds, for one training with its phases
_TIMES_UNDER_A_SCHEDULE = 3  # as long
_SCRIPT = Path(__file__).with_name("preloading.py")

Command = Callable[[str], Sequence[str]]


class Trials(ExitStack):
    """Runs configs of one release; thread-safe. A context manager.

    Raises environments.Unavailable if the release cannot be installed.
    """

    def __init__(self, release: str) -> None:
        super().__init__()
        self._release = release
        self._path = environments.installed(release)
        self._commands: dict[tuple[str, ...] | None, Command] = {}

    def __enter__(self) -> Trials:
        # preload DeepSpeed for the two common variants; variants that search for a fix import it in each rank
        self._commands[None] = self._preloaded(fresh)
        for skipped in ((), environments.not_importing()):
            environment = {"PYTHONPATH": str(self._path), "DSFIX_SKIP": ",".join(skipped)}
            self._commands[skipped] = self._preloaded(self._commands[None], _SCRIPT, environment=environment)
        return self

    def _preloaded(self, otherwise: Command, *scripts: Path, environment: Mapping[str, str] | None = None) -> Command:
        try:
            return self.enter_context(Preloaded("cuda", *scripts, environment=environment)).command
        except LabUnavailable as reason:
            print(f"each process imports more itself: {reason}", file=sys.stderr)
            return otherwise

    def run(self, row: Row, variant: str, left_out: Sequence[str] = ()) -> AuditVerdict:
        """The audit's verdict on one config. left_out: patches to disable in the variant "with".

        The variant "without" has no patches except those needed to import the release here.
        """
        skip = tuple(left_out) if variant == "with" else environments.not_importing()
        command = self._commands.get(skip, self._commands[None])
        plan = space.plan(row, self._release)
        timeout = _TIMEOUT * (_TIMES_UNDER_A_SCHEDULE if plan.schedule else 1)
        return trial(plan, skip=skip, path=self._path, timeout=timeout, command=command)
