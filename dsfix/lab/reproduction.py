"""Runs the reproduction of one patch in fresh processes, with or without the patch, and reports what was seen."""

from __future__ import annotations

import json
import signal
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dsfix
from dsfix.catalogue.registry import catalogue
from dsfix.lab.cuda.load import SCHEDULE
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.isolation import isolated_environment
from dsfix.lab.ranks import RankResult, fresh_command, launch, rank
from dsfix.lab.session import Lab
from dsfix.patch import BugPresent, CannotTell
from dsfix.settings import write_atomically
from dsfix.versions import installed

_TAIL_LINES = 20
_DISTRIBUTIONS = ("deepspeed", "torch", "numpy", "pydantic", "python")


def in_force(patch: str) -> bool:
    """Whether a Sighting's `patch` means that it applied on all ranks and, if it reports effects, had one."""
    rank_outcomes = set(patch.split(", "))
    return rank_outcomes == {"applied"} or {"not-reached"} != rank_outcomes <= {"took-effect", "ran", "not-reached"}


@dataclass(frozen=True)
class Sighting:
    """The result of one reproduction.

    outcome: "bug", "no-bug", "cannot-tell", "error" or "timeout"; detail: what was seen, or why nothing was. patch: the
    outcome of the patch in that process, or what an applied one reported, as in `dsfix.report()`; device: "CPU",
    "emulated CUDA device" or the GPU's name; versions: distribution -> version. The last three are empty if no process
    reported.
    """

    outcome: str
    detail: str
    seconds: float
    patch: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_force(self) -> bool:
        return in_force(self.patch)


def run(
    patch_id: str,
    patched: bool,
    timeout: float = 300.0,
    path: Path | None = None,
    rank_command: Sequence[str] = fresh_command(__name__),
    schedule: str = "",
) -> Sighting:
    """Runs the reproduction in `patch.ranks` fresh processes that import dsfix first, in an isolated environment.

    Without the patch all others still apply. path: first entry of the processes' sys.path, for a DeepSpeed installed
    there. rank_command: runs `main` with the arguments appended to it. schedule: of the emulated device from
    the start, overriding the reproduction's. Raises KeyError for an unknown id.
    """
    entry = catalogue()[patch_id]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsfix-") as directory:
        scratch = Path(directory)
        environment = {
            **isolated_environment(scratch, path=path, skip=() if patched else (patch_id,)),
            **({SCHEDULE: schedule} if schedule else {}),
        }
        environment["DSFIX_ALSO"] = f"{environment.get('DSFIX_ALSO', '')} {patch_id}"  # it may be off by default
        work = scratch / "work"
        work.mkdir()
        command = [*rank_command, patch_id, directory]
        try:
            ranks = launch(command, ranks=entry.patch.ranks, timeout=timeout, env=environment, cwd=work)
        except LabUnavailable as error:
            return Sighting("cannot-tell", str(error), time.monotonic() - started)
        sighting = [_read(result, scratch) for result in ranks]
        outcome, detail = _combine([_judge(result, one) for result, one in zip(ranks, sighting)], timeout)
    reported = [one for one in sighting if one]
    return Sighting(
        outcome,
        detail,
        time.monotonic() - started,
        patch=", ".join(sorted({one["patch"] for one in reported})),
        device=", ".join(sorted({one["device"] for one in reported} - {""})),
        versions=reported[0]["versions"] if reported else {},
    )


def _read(result: RankResult, directory: Path) -> dict[str, Any] | None:
    """What the rank wrote, or None if it ended earlier."""
    try:
        sighting: dict[str, Any] = json.loads(_result_file(directory, result.rank).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return sighting


def _judge(result: RankResult, seen: Mapping[str, Any] | None) -> tuple[str, str]:
    """What one rank saw; "killed" if it was ended because another rank failed."""
    tail = "\n".join(result.stderr.splitlines()[-_TAIL_LINES:])
    if seen is not None:
        return seen["outcome"], "\n".join([seen["detail"], tail]) if seen["outcome"] == "error" else seen["detail"]
    if result.timed_out:
        return "timeout", f"rank {result.rank} was still running\n{tail}"
    if result.returncode == -signal.SIGKILL:
        return "killed", f"rank {result.rank} was killed\n{tail}"
    how = f"exit status {result.returncode}"
    if result.returncode < 0:
        how = f"signal {signal.Signals(-result.returncode).name}"
    return "error", f"rank {result.rank} ended with {how}\n{tail}"


def _combine(seen: list[tuple[str, str]], timeout: float) -> tuple[str, str]:
    """The result of all ranks; "bug" and "cannot-tell" come first: they leave the other ranks without a peer."""
    for outcome in ("bug", "cannot-tell", "error", "timeout", "killed"):
        for what, detail in seen:
            if what == outcome == "timeout":
                return "timeout", f"timed out after {timeout:g} s: {detail}"
            if what == outcome:
                return "error" if what == "killed" else what, detail
    return seen[0]


def _result_file(directory: Path, rank: int) -> Path:
    return directory / f"{rank}.json"


def _reproduce(patch_id: str) -> dict[str, Any]:
    entry = catalogue()[patch_id]
    with Lab(device=entry.patch.device) as lab:
        try:
            if not hasattr(entry.module, "reproduce"):
                raise CannotTell("its file has no reproduce(lab)")  # a plug-in's patch
            outcome, detail = "no-bug", entry.module.reproduce(lab)
        except BugPresent as seen:
            outcome, detail = "bug", str(seen)
        except (CannotTell, LabUnavailable) as reason:
            outcome, detail = "cannot-tell", str(reason)
        except Exception as error:
            traceback.print_exc()
            outcome, detail = "error", traceback.format_exception_only(type(error), error)[-1].strip()
        device = lab.device_name
    [patch] = [each.reached.replace(" ", "-") or each.outcome.value for each in dsfix.report() if each.id == patch_id]
    versions = {name: installed(name) or "" for name in (*_DISTRIBUTIONS, *entry.patch.affects)}
    return {"outcome": outcome, "detail": detail, "patch": patch, "device": device, "versions": versions}


def main(patch_id: str, directory: str) -> int:
    """Writes what this rank saw; returns 0 only for "no-bug", so that other ranks do not wait for it."""
    sighting = _reproduce(patch_id)
    write_atomically(_result_file(Path(directory), rank()), json.dumps(sighting).encode())
    return 0 if sighting["outcome"] == "no-bug" else 1
