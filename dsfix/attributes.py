"""The verbs Replace, Wrap and Provide: a name set in a module or class, and set back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .code import attribute
from .outcome import Outcome, Refused
from .patch import Provide, Replace, Wrap

_ABSENT = object()


class AttributeHandle:
    """The names that one change has set; `undo` sets them back, unless somebody else has set them since."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any, Any]] = []  # holder, name, before, now

    def set(self, holder: Any, name: str, value: Any) -> None:
        before = vars(holder).get(name, _ABSENT)
        setattr(holder, name, value)
        self._set.append((holder, name, before, value))

    def undo(self) -> None:
        while self._set:
            holder, name, before, now = self._set.pop()
            if vars(holder).get(name, _ABSENT) is not now:
                continue
            if before is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, before)

    def in_force(self) -> bool:
        if not self._set:
            return True
        holder, name, _, now = self._set[0]
        return vars(holder).get(name, _ABSENT) is now


def substitute(module: ModuleType, change: Replace | Wrap) -> AttributeHandle:
    """Puts the replacement, or the wrapper, in place of the target and of every alias of it in imported modules.

    Raises:
        Refused: drifted where the target is not there, conflict where it is another package's.
    """
    holder, name, raw = attribute(module, change.target.partition(":")[2])
    owner = getattr(getattr(raw, "__func__", raw), "__module__", None)
    package = module.__name__.partition(".")[0]
    if isinstance(owner, str) and callable(getattr(raw, "__func__", raw)) and owner.partition(".")[0] != package:
        raise Refused(
            Outcome.CONFLICT, f"{change.target} has been replaced by {owner}.{getattr(raw, '__qualname__', name)}"
        )
    new = change.factory(raw) if isinstance(change, Replace) else _wrapped(raw, change)
    handle = AttributeHandle()
    try:
        handle.set(holder, name, new)
        if isinstance(holder, ModuleType):
            for other, alias in _aliases(raw, holder, name):
                handle.set(other, alias, new)
    except BaseException:
        handle.undo()
        raise
    return handle


def _wrapped(raw: Any, change: Wrap) -> Any:
    from .wrapper import PicklableWrapper  # wrapt, needed by patches that wrap only

    return PicklableWrapper(raw, change.wrapper)


def _aliases(value: Any, holder: ModuleType, name: str) -> list[tuple[ModuleType, str]]:
    """(module, name) of what ``from … import`` left in modules imported earlier."""
    found = []
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for alias, bound in list(vars(module).items()):
                if bound is value and not (module is holder and alias == name):
                    found.append((module, alias))
    return found


def provide(module: ModuleType, change: Provide) -> AttributeHandle | None:
    """Gives the module the name; None where it has it."""
    if change.name in vars(module):
        return None
    handle = AttributeHandle()
    handle.set(module, change.name, change.factory(module))
    return handle
