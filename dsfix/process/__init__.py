"""This process's engine and its public interface: `report`, `require`, `revert`, the files of DSFIX_REPORT."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from .. import log, versions
from ..catalogue import registry
from ..engine import hooks
from ..engine.engine import Engine, PatchState
from ..engine.garbage import gc_paused, resume
from ..outcome import BUG_ABSENT, Outcome, RequirementError, StrictError, UnknownPatch, error_text
from ..settings import Settings, write_atomically
from . import effects, programs
from .effects import Effect

_engine: Engine | None = None
_why_not_active = "it is not active in this process"  # why a script cannot rely on dsfix; "" if it can
_files: dict[int, _ReportFile] = {}  # by pid: a forked child writes its own


class PatchReport(NamedTuple):
    """The outcome of one patch in this process.

    reached: "took effect", "ran" or "not reached" for an applied patch, "" if it does not report. effect: the first.
    """

    id: str
    title: str
    severity: str
    outcome: Outcome
    reason: str
    reached: str
    effect: Effect | None


def is_command_line() -> bool:
    """Whether this process is `python -m dsfix` or its console script, where nothing is patched or reported."""
    started = "".join(getattr(sys, "argv", [])[:1])
    if started != "-m":
        return os.path.basename(started) in ("dsfix", "dsfix.exe")
    arguments = getattr(sys, "orig_argv", None) or _command()  # Python 3.9 has none
    for number, argument in enumerate(arguments[1:], 1):
        option = re.match(r"-[bBdEiIOPqsSuvx]*m(.*)", argument)
        if option is not None:
            return (option[1] or "".join(arguments[number + 1 : number + 2])) == "dsfix"
    return False


def _command() -> list[str]:
    try:
        return Path("/proc/self/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []


def activate() -> Settings | None:
    """Starts the engine with the environment's settings and returns them; None if it is already running. Raises
    StrictError: under DSFIX_STRICT=1, in place of any warning."""
    global _engine, _why_not_active
    if _engine is not None:  # dsfix is reloaded
        return None
    settings = Settings.read()
    log.set_up(settings.log_level)
    _engine = Engine(settings, on_change=_write, on_deepspeed=_deepspeed_imported)
    effects.start_recording(_on_first_effect)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    try:
        hooks.withdraw_earlier_dsfix()
        with gc_paused():
            _engine.activate()
        if hooks.executed("deepspeed") and not settings.disable:
            _announce(_engine)
    except StrictError:
        with contextlib.suppress(StrictError):  # a later patch may raise, too
            _write()  # the report includes the failure
        _engine.withdraw()
        _engine = None  # importing dsfix again raises again
        raise
    except Exception as error:  # never let dsfix break the job
        _why_not_active = f"it could not start: {error_text(error)}"
        log.warn(f"dsfix could not start, so some patches may be missing: {error_text(error)}")
    else:
        late = "DeepSpeed was imported first: move `import dsfix` to the first line of the script"
        _why_not_active = "DSFIX_DISABLE is set" if settings.disable else late if hooks.executed("deepspeed") else ""
    return settings


def _deepspeed_imported(engine: Engine) -> None:
    _announce(engine)
    programs.patch_program(engine)


def _announce(engine: Engine) -> None:
    """Logs one line per job: the number of patches per outcome, and the ids of those in trouble."""
    counts, about = [], versions.versions_text("deepspeed", "torch")
    for outcome in Outcome:
        ids = [state.summary.id for state in engine.states.values() if state.outcome is outcome]
        why = ", ".join(ids) if outcome.trouble else ""
        if outcome is Outcome.PENDING:
            why = "waiting for their modules to be imported"
        if ids:
            counts.append(f"{len(ids)} {outcome.value}" + (f" ({why})" if why else ""))
    log.info_once_per_job(f"{about}: {', '.join(counts) or 'no patches'}; `python -m dsfix list` has the details")


def report() -> list[PatchReport]:
    """The current outcome of every patch in this process, ordered by id."""
    return [_reported(state) for state in current_states()]


def load_patches() -> None:
    """Loads the files of all patches that may apply, which a warm cache puts off until a helper is called."""
    for state in () if _engine is None else _engine.states.values():
        if state.modules:
            with contextlib.suppress(ImportError):  # it was reported, or is by the call
                registry.entry(state.summary)


def current_states() -> list[PatchState]:
    """Every patch in this process, ordered by id, with its outcome as it is now."""
    if _engine is None:
        return []
    _engine.refresh()
    return list(_engine.states.values())


def _reported(state: PatchState) -> PatchReport:
    summary = state.summary
    reached, effect = effects.reached(summary, state.patch) if state.outcome is Outcome.APPLIED else ("", None)
    return PatchReport(summary.id, summary.title, summary.severity, state.outcome, state.reason, reached, effect)


def require(*patch_ids: str) -> None:
    """Raises if dsfix, or one of these patches, is not active; for scripts that are wrong without them.

    A patch is accepted if it is applied, if it will be applied when DeepSpeed is imported, or if the installed
    DeepSpeed does not have its bug. With ids this takes about 2 ms. Raises RequirementError: one sentence: dsfix is
    disabled, was imported after DeepSpeed, or could not start; or an id is unknown, or its patch is disabled or could
    not be applied.
    """
    if _why_not_active or _engine is None:
        raise RequirementError(f"this script requires dsfix, but {_why_not_active}")
    if patch_ids:
        _engine.refresh()
    states = {patch_id.lower(): state for patch_id, state in _engine.states.items()}
    for patch_id in map(str, patch_ids):
        state = states.get(patch_id.lower())
        if state is None:
            raise RequirementError(f"this script requires dsfix, but {UnknownPatch(patch_id, states)}")
        if state.outcome not in (Outcome.APPLIED, Outcome.PENDING, *BUG_ABSENT):
            raise RequirementError(
                f"this script requires dsfix, but {patch_id} is {state.outcome.value}: {state.reason}"
            )


def revert(patch_id: str) -> None:
    """Reverts one patch for the rest of this process; its outcome becomes `disabled`. Raises UnknownPatch."""
    if _engine is not None:
        _engine.revert(patch_id)


def as_json() -> dict[str, Any]:
    """The content of this process's file under DSFIX_REPORT."""
    from .. import __version__

    plugins = () if _engine is None else (state.summary.distribution for state in _engine.states.values())
    names = [name for name in dict.fromkeys(("deepspeed", "torch", "numpy", *plugins)) if name != "dsfix"]
    return {
        "dsfix": __version__,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "rank": log.rank(),
        "argv": sys.argv[:1],
        "python": platform.python_version(),
        "distributions": {name: versions.installed(name) for name in names},
        "patches": [_report_as_json(each) for each in report()],
    }


def _report_as_json(each: PatchReport) -> dict[str, Any]:
    effect = None if each.effect is None else each.effect._asdict()
    return {**each._asdict(), "outcome": each.outcome.value, "effect": effect}


class _ReportFile:
    """A process's report file; if two threads write it, the later report stays."""

    def __init__(self) -> None:
        self.name = f"dsfix-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}.json"
        self.numbers = itertools.count(1)
        self.last_written = 0
        self.lock = threading.Lock()

    def write(self, directory: Path, number: int, text: str) -> None:
        with self.lock:
            if number > self.last_written:
                write_atomically(directory / self.name, text.encode())
                self.last_written = number


def _after_fork() -> None:
    """Gives a forked child its own locks and writes its report immediately: it may exit by os._exit."""
    resume()
    effects.start_recording(_on_first_effect)
    if _engine is not None:
        _engine.forked()
        try:
            _write()
        except Exception as error:  # never let dsfix break the fork
            log.warn(f"DSFIX_REPORT: a forked process could not write its report: {error_text(error)}")


def _on_first_effect() -> None:
    """Called when a patch is reached for the first time, in the middle of a step."""
    try:
        _write()
    except Exception as error:
        log.warn(f"DSFIX_REPORT: the report could not be updated: {error_text(error)}")


def _write() -> None:
    """Writes the process's report atomically if DSFIX_REPORT names a directory."""
    if _engine is None or _engine.settings.report is None:
        return
    directory, file = Path(_engine.settings.report), _files.setdefault(os.getpid(), _ReportFile())
    number = next(file.numbers)
    text = json.dumps(as_json(), indent=1) + "\n"
    try:
        file.write(directory, number, text)
    except OSError as error:
        log.warn(f"DSFIX_REPORT: no report can be written to {directory}: {error.strerror or error}")
        _engine.settings = _engine.settings._replace(report=None)
