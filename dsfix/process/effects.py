"""What the patches did in this process: a patch says, where it happens, that it changed a result.

`took_effect` is called where the result is about to differ from unpatched DeepSpeed's: a gradient scaled once instead
of twice, a tensor moved, an exception that does not come; by an Edit that declares its effect, or by a patch's helpers.
Where only the device knows, `ran` is. Neither reads a tensor, makes a collective or keeps an argument; after a patch's
first call each costs a look into a dictionary.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from typing import Any, Callable, NamedTuple

from .. import log
from ..catalogue.registry import Summary
from ..engine.rewrite import names
from ..patch import EFFECTS, Edit, Patch

_LINES = 10  # of a job's log


class Effect(NamedTuple):
    """The first time that a patch took effect. step: that of the engine made last, from 1; None without one."""

    step: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.step is None else f"step {self.step}: {self.what}"


_reached: set[str] = set()
_effects: dict[str, Effect] = {}
_logged: set[str] = set()
_engine: weakref.ref[Any] | None = None
_on_first: Callable[[], None]


def follow(on_first: Callable[[], None]) -> None:
    """From now on, and in a forked child from its start: nothing has been reached, and each first time calls this."""
    global _on_first
    _on_first = on_first
    for each in (_reached, _effects, _logged):
        each.clear()
    atexit.unregister(_count)  # the parent's lines


def count_steps_of(engine: Any) -> None:
    """The engine that deepspeed.initialize has returned last; None while it makes one."""
    global _engine
    _engine = weakref.ref(engine) if hasattr(engine, "global_steps") else None


def took_effect(patch: str, what: str, *values: object) -> None:
    """The result differs from unpatched DeepSpeed's from here on. patch: its id, or its module's `__name__`; what: a
    short phrase in the past tense with a %s for each of `values`, which are no tensors: "gradients were divided by %s".
    """
    if patch not in _effects:
        _first(patch, what % values)


def ran(patch: str) -> None:
    """The patch's code has run; whether it changed a result, only the device knows."""
    if patch not in _reached:
        _reached.add(patch)
        _on_first()


def untold(patch: str) -> bool:
    """Whether `took_effect` has yet to be called, before an Edit's `when` is looked at."""
    return patch not in _effects


def not_ran(patch: str) -> bool:
    """The same for `ran`."""
    return patch not in _reached


# torch.compile calls them while it traces, instead of compiling what they do: no graph break, no guard on the sets
for _each in (took_effect, ran, untold, not_ran):
    vars(_each)["_dynamo_marked_constant"] = True
names[EFFECTS] = sys.modules[__name__]


def _first(patch: str, what: str) -> None:
    _reached.add(patch)
    _effects[patch] = effect = Effect(_step(), what)
    if log.rank() == 0:
        patch_id = patch.rpartition(".")[2]
        _logged.add(patch_id)
        if len(_logged) <= _LINES:
            with contextlib.suppress(Exception):  # of the application's handlers: the step is worth more than a line
                log.inform(f"{patch_id} took effect, {effect}")
        elif len(_logged) == _LINES + 1:
            atexit.register(_count)
    _on_first()


def _count() -> None:
    log.inform(f"{len(_logged)} patches took effect, {len(_logged) - _LINES} of them after the lines above")


def _step() -> int | None:
    engine = None if _engine is None else _engine()
    return None if engine is None else engine.global_steps + 1


def told(summary: Summary, patch: Patch) -> tuple[str, Effect | None]:
    """What a patch that is applied says of this process: "took effect" and where first, "ran", "not reached", or "" if
    it does not tell."""
    names = {summary.id, summary.module}
    for name in names & _effects.keys():
        return "took effect", _effects[name]
    edits = [each for each in patch.changes if isinstance(each, Edit)]
    names_used = vars(sys.modules[summary.module]).values()
    tells = any(each.effect for each in edits) or took_effect in names_used or ran in names_used
    if names & _reached or not (edits or tells):  # a name that is provided or replaced is in force at once
        return "ran", None
    return ("not reached" if tells else ""), None
