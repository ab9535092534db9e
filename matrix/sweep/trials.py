"""One config on one release, in ranks that are forked from a process that has imported torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

import environments
from dsfix.audit.trial import fresh, trial
from dsfix.audit.verdict import Verdict
from dsfix.lab.errors import LabUnavailable
from dsfix.patch import Severity
from dsfix.registry import catalogue
from preload import Preloaded
from sweep import space
from sweep.space import Row

_TIMEOUT = 120.0  # seconds, for one training with its phases


class Trials:
    """Runs configs, several at a time if called by several threads. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._command: Callable[[str], Sequence[str]] = fresh

    def __enter__(self) -> Trials:
        try:
            self._command = self._stack.enter_context(Preloaded("cuda")).command
        except LabUnavailable as reason:
            print(f"torch is imported anew for each process: {reason}", file=sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, release: str, row: Row, variant: str, left_out: Sequence[str] = ()) -> Verdict:
        """`left_out`: patches that are skipped. Raises environments.Unavailable where the release cannot be had.

        Without dsfix means without its patches, but for those without which the release cannot be imported here.
        """
        skip = left_out if variant == "with" else not_importing()
        path = environments.installed(release)
        return trial(space.plan(row), skip=skip, path=path, timeout=_TIMEOUT, command=self._command)


def not_importing() -> list[str]:
    """The patches of something else than the import."""
    return [entry.id for entry in catalogue().values() if entry.patch.severity is not Severity.IMPORT]
