"""Run one job on one release, in ranks forked from a process that has imported torch and DeepSpeed."""

from __future__ import annotations

import hashlib
import json
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsfix.catalogue.registry import catalogue
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.isolation import isolated_environment
from dsfix.lab.preload import ForkServer
from dsfix.lab.ranks import launch
from dsfix.settings import cache_directory, write_atomically
from matrix import environments
from matrix.bystanders.space import Job
from matrix.runner import Servers

_HERE = Path(__file__).parent
_MARKING, _PRELOADING = _HERE / "marking.py", _HERE / "preloading.py"
_TIMEOUT = 180.0  # seconds, for one job

#: Without patches, except those needed to import the release with this torch.
NONE = "none"
#: With all patches that are on by default.
ALL = "all"
#: In plain PyTorch.
PLAIN = "plain"


def without(patch_id: str) -> str:
    """All patches but one."""
    return f"without {patch_id}"


def with_also(patch_id: str) -> str:
    """All patches and one that is off by default."""
    return f"with {patch_id}"


@dataclass(frozen=True)
class JobResult:
    """What the ranks of a job observed, as rank.py writes it; None for a rank that crashed. late: the job timed out."""

    ranks: tuple[dict[str, Any] | None, ...]
    late: bool

    @property
    def run(self) -> dict[str, set[int]]:
        """patch id -> the numbers of its statements that any rank ran."""
        statements: dict[str, set[int]] = {}
        for rank in self.ranks:
            for patch_id, numbers in (rank or {}).get("run", {}).items():
                statements.setdefault(patch_id, set()).update(numbers)
        return statements


class Trials(Servers):
    """Runs the jobs of one release; thread-safe. A context manager.

    marks: the script that has the statements recorded that run, by default those of patches, with `environment`.
    Raises environments.Unavailable if the release cannot be installed.
    """

    def __init__(self, release: str, marks: Path | None = _MARKING, **environment: str) -> None:
        super().__init__()
        self._release = release
        self._scripts = tuple(filter(None, (marks, _PRELOADING)))
        self._more = environment
        self.path = environments.installed(release)
        self._cannot_start: set[str] = set()  # variants

    def run(self, job: Job, variant: str) -> JobResult:
        """What the job's ranks observed. Runs that do not depend on the patches are kept in dsfix's cache."""
        cache_file = self._kept(job, variant)
        if cache_file is not None and cache_file.is_file():
            result: JobResult = pickle.loads(cache_file.read_bytes())
            return result
        result = self._run(job, variant)
        if cache_file is not None and not result.late:  # a busy machine may be the reason for a timeout
            write_atomically(cache_file, pickle.dumps(result))
        return result

    def _run(self, job: Job, variant: str) -> JobResult:
        with tempfile.TemporaryDirectory(prefix="dsfix-bystander-") as name:
            scratch = Path(name)
            environment = {**isolated_environment(scratch), "PYTHONPATH": str(self.path)}
            work = scratch / "work"
            work.mkdir()
            how = "plain" if variant == PLAIN else "deepspeed"
            command = self._of_variant(NONE if variant == PLAIN else variant).command("matrix.bystanders.rank")
            argv = [*command, job.scenario.name, json.dumps(job.setting), how, name]
            ended = launch(argv, ranks=job.ranks, timeout=_TIMEOUT, env=environment, cwd=work)
            files = [scratch / f"{rank}.pickle" for rank in range(job.ranks)]
            ranks = tuple(pickle.loads(file.read_bytes()) if file.is_file() else None for file in files)
            if not any(ranks):
                stderr = [line for line in ended[0].stderr.splitlines() if line.strip()]
                late = any(each.timed_out for each in ended)
                if not late:
                    raise environments.Unavailable(f"{job.id} could not be run: {(stderr or ['no output'])[-1]}")
            return JobResult(ranks, any(each.timed_out for each in ended))

    def starts(self, variant: str) -> bool:
        """Whether DeepSpeed can be imported in this variant."""
        if variant not in self._cannot_start:
            try:
                self._of_variant(variant)
            except LabUnavailable:
                self._cannot_start.add(variant)
        return variant not in self._cannot_start

    def _of_variant(self, variant: str) -> ForkServer:
        """The process from which the variant's ranks are forked."""
        return self.server("cuda", *self._scripts, PYTHONPATH=str(self.path), **self._more, **_environment(variant))

    def _kept(self, job: Job, variant: str) -> Path | None:
        if variant not in (NONE, PLAIN):
            return None
        release = "plain" if variant == PLAIN else self._release
        parts = [job.scenario.fingerprint(), *(_file(each) for each in _framework())]
        if variant == NONE:
            others = environments.not_importing()
            parts += [
                _file(Path(str(entry.module.__file__))) for entry in catalogue().values() if entry.id not in others
            ]
        digest = hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
        return cache_directory() / "bystanders" / release / f"{job.id}-{digest}"


def _environment(variant: str) -> dict[str, str]:
    if variant == NONE:
        return {"DSFIX_SKIP": ",".join(environments.not_importing())}
    kind, _, patch_id = variant.partition(" ")
    if kind == "without":
        return {"DSFIX_SKIP": patch_id}
    if kind == "with":
        return {"DSFIX_ALSO": patch_id}
    return {}


def _framework() -> Iterator[Path]:
    for name in ("job", "plain", "rank", "space", "watch"):
        yield _HERE / f"{name}.py"


def _file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
