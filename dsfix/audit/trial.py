"""One comparison of DeepSpeed with plain PyTorch, in processes of its own. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dsfix.audit import operators
from dsfix.audit.agreement import AuditVerdict, Difference
from dsfix.audit.plan import Plan
from dsfix.lab.cuda.load import SCHEDULE
from dsfix.lab.distributions import LabUnavailable, gpu_likely
from dsfix.lab.isolation import isolated_environment
from dsfix.lab.preload import ForkServer
from dsfix.lab.ranks import RankResult, fresh_command, launch

Command = Callable[[str], Sequence[str]]


@contextlib.contextmanager
def ranks(device: str) -> Iterator[Command]:
    """How to start the processes of several trials on `device`: forked from one that has imported torch.

    With a GPU each is a fresh one, because forks of a process with CUDA were not tried. Raises LabUnavailable.
    """
    if gpu_likely():
        yield fresh_command
    else:
        with ForkServer(device) as preloaded:
            yield preloaded.command


def trial(
    plan: Plan,
    *,
    skip: Sequence[str] = (),
    patched: bool = True,
    path: Path | None = None,
    timeout: float = 120.0,
    plant: str = "",
    command: Command = fresh_command,
) -> AuditVerdict:
    """Trains `plan` with DeepSpeed and returns how it compares with plain PyTorch, step by step.

    skip: patches to disable; patched: whether any patch is applied. path: the first entry of the ranks' sys.path, with
    the DeepSpeed to use. timeout: of each job; each loading phase is a separate job. plant: a module file with a
    planted bug, for tests. command: as `fresh`.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsfix-audit-") as name:
        scratch = Path(name)
        off = {} if patched else {"DSFIX_DISABLE": "1"}
        environment = {**isolated_environment(scratch, path=path, skip=skip), **off}
        try:
            verdict = _trial(plan, scratch, environment, timeout, plant, command)
        except LabUnavailable as error:
            verdict = AuditVerdict(failed=str(error))
    return dataclasses.replace(verdict, seconds=time.monotonic() - started)


def compiled(plan: Plan, command: Command = fresh_command) -> float:
    """Compiles the operator that `plan` needs, if dsfix's cache lacks it; the seconds that it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsfix-audit-") as name, contextlib.suppress(LabUnavailable):
        environment = isolated_environment(Path(name))
        if "TORCH_EXTENSIONS_DIR" not in environment:  # else the cache is read-only, and each training has its own
            operators.build(plan, environment, Path(name), command)
    return time.monotonic() - started


def _trial(
    plan: Plan, scratch: Path, environment: dict[str, str], timeout: float, plant: str, command: Command
) -> AuditVerdict:
    directory, work = scratch / "seen", scratch / "work"
    work.mkdir()
    plan_file = scratch / "plan.json"
    plan_file.write_text(plan.dump(), encoding="utf-8")
    operators.build(plan, environment, work, command)

    def job(phase: str, ranks: int) -> list[RankResult]:
        (directory / phase).mkdir(parents=True)
        arguments = [str(plan_file), str(directory), phase, *([plant] if plant else [])]
        argv = [*command("dsfix.audit.rank"), *arguments]
        ended = launch(argv, ranks=ranks, timeout=timeout, env={**environment, SCHEDULE: plan.schedule}, cwd=work)
        return [result for result in ended if not (directory / phase / f"rank-{result.rank}.pt").exists()]

    silent = job("training", plan.ranks)
    if len(silent) == plan.ranks:
        return AuditVerdict(failed=_end(silent, timeout))
    ended = {}
    for phase in _loadable(directory):
        ranks = plan.universal_ranks if phase == "universal" else plan.ranks
        if len(silent_now := job(phase, ranks)) == ranks:
            ended[phase] = _end(silent_now, timeout)
    [comparison] = launch(
        [*command("dsfix.audit.assemble"), str(plan_file), str(directory)],
        ranks=1,
        timeout=timeout,
        env=environment,
        cwd=work,
    )
    try:
        verdict: AuditVerdict = pickle.loads((directory / "verdict").read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        return AuditVerdict(failed=f"the comparison failed: {_end([comparison], timeout)}")
    if silent and not verdict.differences:
        verdict = dataclasses.replace(verdict, failed=_end(silent, timeout))
    errors = (Difference(phase, "error", plan.half, (), 0, 0, 0, 0, how) for phase, how in ended.items())
    return dataclasses.replace(verdict, differences=(*verdict.differences, *errors))


def _loadable(directory: Path) -> list[str]:
    """Returns the phases that can load what the training saved; none if it did not get that far."""
    try:
        phases: list[str] = json.loads((directory / "checkpoint" / "phases.json").read_text(encoding="utf-8"))
    except OSError:
        return []
    return phases


def _end(ranks: Sequence[RankResult], timeout: float) -> str:
    """Returns how the first rank with a message ended, in a sentence."""
    late = [result for result in ranks if result.timed_out]
    if late:
        return f"timed out after {timeout:g} s"
    result = min(ranks, key=lambda each: each.returncode == -9)
    last = ([line for line in result.stderr.splitlines() if line.strip()] or ["no message"])[-1]
    return f"rank {result.rank} ended with exit status {result.returncode}: {last}"
