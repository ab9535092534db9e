"""Run the reproduction of one patch in fresh processes, with the patch or without it, and say what was seen."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsfix.lab.environment import rank
from dsfix.lab.errors import LabUnavailable
from dsfix.lab.ranks import RankResult, launch
from dsfix.lab.session import Lab
from dsfix.patch import BugPresent, CannotTell
from dsfix.registry import Entry, catalogue

_TAIL_LINES = 20
# not `-m`, which would put the current directory, a checkout of dsfix perhaps, before what is installed
_RANK = (
    f"import sys; sys.path[:1] == [''] and sys.path.pop(0); from {__name__} import main; sys.exit(main(*sys.argv[1:]))"
)


@dataclass(frozen=True)
class Sighting:
    """outcome: "bug", "no-bug", "cannot-tell", "error" or "timeout"; detail: what was seen, or why not."""

    outcome: str
    detail: str
    seconds: float


def run(patch_id: str, patched: bool, timeout: float = 300.0) -> Sighting:
    """Reproduce in `patch.ranks` processes that import dsfix first; without the patch all others still apply.

    Raises KeyError for an id that is not in the catalogue.
    """
    entry = catalogue()[patch_id]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsfix-reproduction-") as directory:
        command = [sys.executable, "-c", _RANK, patch_id, directory]
        try:
            ranks = launch(command, ranks=entry.patch.ranks, timeout=timeout, env=_environment(entry, patched))
        except LabUnavailable as error:
            return Sighting("cannot-tell", str(error), time.monotonic() - started)
        outcome, detail = _combine([_judge(result, Path(directory)) for result in ranks], timeout)
    return Sighting(outcome, detail, time.monotonic() - started)


def _environment(entry: Entry, patched: bool) -> Mapping[str, str]:
    if not patched:
        return {"DSFIX_SKIP": ",".join(filter(None, [os.environ.get("DSFIX_SKIP", ""), entry.id]))}
    if not entry.patch.default and "DSFIX_ONLY" not in os.environ:  # off unless asked for by name
        return {"DSFIX_ONLY": ",".join([entry.id, *(e.id for e in catalogue().values() if e.patch.default)])}
    return {}


def _judge(result: RankResult, directory: Path) -> tuple[str, str]:
    """What one rank saw; "killed" where it ended by another's failure."""
    try:
        seen = json.loads(_result_file(directory, result.rank).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        seen = None
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
    """A rank that saw the bug, or cannot tell, leaves the others without a peer: what they then say counts less."""
    for outcome in ("bug", "cannot-tell", "error", "timeout", "killed"):
        for what, detail in seen:
            if what == outcome == "timeout":
                return "timeout", f"no end after {timeout:g} s: {detail}"
            if what == outcome:
                return "error" if what == "killed" else what, detail
    return seen[0]


def _result_file(directory: Path, rank: int) -> Path:
    return directory / f"{rank}.json"


def _reproduce(patch_id: str) -> tuple[str, str]:
    entry = catalogue()[patch_id]
    try:
        with Lab(device=entry.patch.device) as lab:
            entry.module.reproduce(lab)
    except BugPresent as seen:
        return "bug", str(seen)
    except (CannotTell, LabUnavailable) as reason:
        return "cannot-tell", str(reason)
    except Exception as error:
        traceback.print_exc()
        return "error", traceback.format_exception_only(type(error), error)[-1].strip()
    return "no-bug", "the reproduction ran to its end"


def main(patch_id: str, directory: str) -> int:
    """Write what this rank saw; the exit status is 0 only for "no-bug", so that other ranks do not wait for it."""
    outcome, detail = _reproduce(patch_id)
    path = _result_file(Path(directory), rank())
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"outcome": outcome, "detail": detail}), encoding="utf-8")
    os.replace(partial, path)
    return 0 if outcome == "no-bug" else 1
