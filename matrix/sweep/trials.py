"""One config on one release, in ranks that are forked from a process that has imported torch, and DeepSpeed, too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from dsfix.audit.agreement import Verdict
from dsfix.audit.trial import trial
from dsfix.engine.registry import catalogue
from dsfix.lab.errors import LabUnavailable
from dsfix.lab.launcher import fresh
from dsfix.patch import Severity
from matrix import environments
from matrix.preload import Preloaded
from matrix.sweep import space
from matrix.sweep.space import Row

_TIMEOUT = 120.0  # seconds, for one training with its phases
_SCRIPT = Path(__file__).with_name("preloading.py")

Command = Callable[[str], Sequence[str]]


class Trials:
    """Runs configs of one release, several at a time if called by several threads. A context manager.

    Raises environments.Unavailable where the release cannot be had.
    """

    def __init__(self, release: str) -> None:
        self._release = release
        self._path = environments.installed(release)
        self._stack = ExitStack()
        self._commands: dict[tuple[str, ...] | None, Command] = {}

    def __enter__(self) -> Trials:
        # a process for what is run often; patches that are left out to find the cure are imported anew
        self._commands[None] = self._preloaded(fresh)
        for skipped in ((), tuple(not_importing())):
            environment = {"PYTHONPATH": str(self._path), "DSFIX_SKIP": ",".join(skipped)}
            self._commands[skipped] = self._preloaded(self._commands[None], _SCRIPT, environment=environment)
        return self

    def _preloaded(self, otherwise: Command, *scripts: Path, environment: Mapping[str, str] | None = None) -> Command:
        try:
            return self._stack.enter_context(Preloaded("cuda", *scripts, environment=environment)).command
        except LabUnavailable as reason:
            print(f"more is imported anew for each process: {reason}", file=sys.stderr)
            return otherwise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, row: Row, variant: str, left_out: Sequence[str] = ()) -> Verdict:
        """`left_out`: patches that are skipped.

        Without dsfix means without its patches, but for those without which the release cannot be imported here.
        """
        skip = tuple(left_out if variant == "with" else not_importing())
        command = self._commands.get(skip, self._commands[None])
        return trial(space.plan(row, self._release), skip=skip, path=self._path, timeout=_TIMEOUT, command=command)


def not_importing() -> list[str]:
    """The patches of something else than the import."""
    return [entry.id for entry in catalogue().values() if entry.patch.severity is not Severity.IMPORT]
