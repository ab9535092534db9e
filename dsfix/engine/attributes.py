"""The verbs Replace, Wrap and Provide: a name set in a module or class, and set back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..patch import Provide, Replace, Wrap
from .code import attribute
from .outcome import Outcome, Refused

_ABSENT = object()


class AttributeHandle:
    """The names that one change has set; `undo` sets them back, unless somebody else has set them since."""

    def __init__(self, qualname: str) -> None:
        self.qualname = qualname
        self.made_in = ""  # the module that made the value, where other modules may have taken it from the target
        self._set: list[tuple[Any, str, Any, Any]] = []  # holder, name, before, now

    def set(self, holder: Any, name: str, value: Any) -> None:
        self._set.append((holder, name, vars(holder).get(name, _ABSENT), value))
        setattr(holder, name, value)

    def undo(self) -> None:
        """Sets all names back. Raises Refused where somebody has wrapped the value since."""
        wrapped, target = [], self._set[:1]
        while self._set:
            holder, name, before, now = self._set.pop()
            there = vars(holder).get(name, _ABSENT)
            if there is not now:
                wrapped += [name] if _leads_to(there, now) else []
            elif before is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, before)
        for holder, name, before, now in target:
            self._set_later_aliases_back(holder, name, before, now)
        if wrapped:
            raise Refused(Outcome.CONFLICT, f"{', '.join(wrapped)} has been wrapped again since")

    def _set_later_aliases_back(self, holder: Any, name: str, before: Any, now: Any) -> None:
        """What modules imported since have taken from the target by ``from … import``."""
        if self.made_in and not _has_another_home(now, self.made_in):
            for module, alias in _aliases(now, holder, name):
                if module.__name__ != self.made_in:
                    setattr(module, alias, before)

    def in_force(self, module: ModuleType) -> bool:
        """Whether the module's name leads to what was set."""
        try:
            return not self._set or _leads_to(attribute(module, self.qualname)[2], self._set[0][3])
        except Refused:
            return False


def _leads_to(value: Any, wanted: Any) -> bool:
    """Whether `value` is `wanted`, or a wrapper around it."""
    for _ in range(8):
        if value is wanted:
            return True
        value = getattr(value, "__wrapped__", None)
    return False


def _has_another_home(value: Any, made_in: str) -> bool:
    """Whether a module other than `made_in` defines `value` under its own name: not made for the target alone."""
    home = getattr(value, "__module__", None)
    if not isinstance(home, str) or home == made_in:
        return False
    return getattr(sys.modules.get(home), getattr(value, "__qualname__", ""), None) is value


def substitute(module: ModuleType, change: Replace | Wrap) -> AttributeHandle:
    """Puts the replacement, or the wrapper, in place of the target and of every alias of it in imported modules.

    Aliases of what does not come from the target's own package (a number, None, a module, a dtype) are left alone.

    Raises:
        Refused: drifted where the target is not there, conflict where it is another package's.
    """
    holder, name, raw = attribute(module, change.qualname)
    owner = getattr(getattr(raw, "__func__", raw), "__module__", None)
    own = isinstance(owner, str) and owner.partition(".")[0] == module.__name__.partition(".")[0]
    if isinstance(owner, str) and callable(getattr(raw, "__func__", raw)) and not own:
        raise Refused(
            Outcome.CONFLICT, f"{change.target} has been replaced by {owner}.{getattr(raw, '__qualname__', name)}"
        )
    new = change.factory(raw) if isinstance(change, Replace) else _wrapped(raw, change)
    handle = AttributeHandle(change.qualname)
    try:
        handle.set(holder, name, new)
        if isinstance(holder, ModuleType) and own:
            maker = change.factory if isinstance(change, Replace) else change.wrapper
            handle.made_in = getattr(maker, "__module__", "?")
            for other, alias in _aliases(raw, holder, name):
                handle.set(other, alias, new)
    except BaseException:
        handle.undo()
        raise
    return handle


def _wrapped(raw: Any, change: Wrap) -> Any:
    from ..guards.wrapper import PicklableWrapper  # wrapt, needed by patches that wrap only

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
    handle = AttributeHandle(change.name)
    handle.set(module, change.name, change.factory(module))
    return handle
