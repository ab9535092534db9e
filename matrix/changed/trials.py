"""Jobs on a release whose statements that changed since another are marked."""

from __future__ import annotations

from pathlib import Path

from matrix import environments
from matrix.bystanders.space import Job
from matrix.bystanders.trials import Trials

_HERE = Path(__file__).parent


class Marked(Trials):
    """Runs jobs of the new release; `Seen.run` has the lines that were reached: file -> lines. A context manager."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(new)
        self._old = old
        self._scripts = (_HERE / "marking.py", *self._scripts[-1:])
        self._more = {"DSFIX_MATRIX_OLD": str(environments.installed(old))}

    def _kept(self, job: Job, variant: str) -> Path | None:
        kept = super()._kept(job, variant)
        return kept and kept.with_name(f"{kept.name}-since-{self._old}")
