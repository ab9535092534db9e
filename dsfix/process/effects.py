"""What the patches did in this process: a patch reports when it first changes a result.

An Edit that declares its effect, or a patch's helper, calls `took_effect` where the result is about to differ from
unpatched DeepSpeed's: a gradient scaled once instead of twice, a tensor moved, an exception avoided. `ran` is called
instead if only the device knows. Neither reads a tensor, runs a collective or keeps an argument; after a patch's first
call each costs one dictionary lookup.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from typing import Any, Callable, NamedTuple

from .. import log
from ..catalogue import registry
from ..catalogue.registry import Summary
from ..engine.rewrite import added_globals
from ..patch import EFFECTS, Edit, Patch

_LINES = 10  # of a job's log


class Effect(NamedTuple):
    """The first effect of a patch. step: of the engine created last, counted from 1; None without an engine."""

    step: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.step is None else f"step {self.step}: {self.what}"


_reached: set[str] = set()
_effects: dict[str, Effect] = {}
_logged: set[str] = set()
_engine: weakref.ref[Any] | None = None
_on_first: Callable[[], None]


def start_recording(on_first: Callable[[], None]) -> None:
    """Starts over, also in a forked child: no patch has been reached, and `on_first` is called when one first is."""
    global _on_first
    _on_first = on_first
    for each in (_reached, _effects, _logged):
        each.clear()
    atexit.unregister(_log_total)  # the parent's lines


def count_steps_of(engine: Any) -> None:
    """Effects are logged with the steps of this engine, which deepspeed.initialize returned last; None in between."""
    global _engine
    _engine = weakref.ref(engine) if hasattr(engine, "global_steps") else None


def took_effect(patch: str, what: str, *values: object) -> None:
    """Reports that the result differs from unpatched DeepSpeed's from here on. patch: its id, or its module's
    `__name__`; what: a short past-tense phrase with a %s for each of `values`, which must not be tensors: "gradients
    were divided by %s".
    """
    if patch not in _effects:
        _record_first(patch, what % values)


def ran(patch: str) -> None:
    """Reports that the patch's code has run; only the device knows whether it changed a result."""
    if patch not in _reached:
        _reached.add(patch)
        _on_first()


def is_unreported(patch: str) -> bool:
    """True until the patch has reported an effect; checked before an Edit's `when`."""
    return patch not in _effects


def has_not_run(patch: str) -> bool:
    """The same for `ran`."""
    return patch not in _reached


# torch.compile calls them while tracing instead of compiling them: no graph break, no guard on the sets
for _each in (took_effect, ran, is_unreported, has_not_run):
    vars(_each)["_dynamo_marked_constant"] = True
added_globals[EFFECTS] = sys.modules[__name__]


def _record_first(patch: str, what: str) -> None:
    _reached.add(patch)
    _effects[patch] = effect = Effect(_step(), what)
    if log.rank() == 0:
        patch_id = patch.rpartition(".")[2]
        _logged.add(patch_id)
        if len(_logged) <= _LINES:
            with contextlib.suppress(Exception):  # raised by the application's handlers: never let dsfix break the step
                log.info_on_rank_zero(f"{patch_id} took effect, {effect}")
        elif len(_logged) == _LINES + 1:
            atexit.register(_log_total)
    _on_first()


def _log_total() -> None:
    log.info_on_rank_zero(f"{len(_logged)} patches took effect; {len(_logged) - _LINES} of them are not listed above")


def _step() -> int | None:
    engine = None if _engine is None else _engine()
    return None if engine is None else engine.global_steps + 1


def reached(summary: Summary, patch: Patch) -> tuple[str, Effect | None]:
    """What an applied patch reported in this process: "took effect" with its first effect, "ran" or "not reached"; ""
    if it does not report."""
    aliases = {summary.id, summary.module}
    for name in aliases & _effects.keys():
        return "took effect", _effects[name]
    edits = [change for change in patch.changes if isinstance(change, Edit)]
    tells = any(edit.effect for edit in edits)
    with contextlib.suppress(ImportError):  # the file was removed while the job runs
        if not tells:
            values = vars(registry.entry(summary).module).values()
            tells = took_effect in values or ran in values
    if aliases & _reached or not (edits or tells):  # a provided or replaced name is active immediately
        return "ran", None
    return ("not reached" if tells else ""), None
