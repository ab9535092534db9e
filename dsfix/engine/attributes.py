"""The changes Replace and Provide: set a name in a module or class, and restore it."""

from __future__ import annotations

import functools
import operator
import sys
from types import ModuleType
from typing import Any

from ..outcome import ChangeRefused, Outcome
from ..patch import Provide, Replace
from . import hooks

_ABSENT = object()


def raw_attribute(module: ModuleType, qualname: str) -> tuple[Any, str, Any]:
    """(holder, name, raw value) of a dotted name in a module, without invoking descriptors. Raises ChangeRefused."""
    value: Any = module
    for part in qualname.split("."):
        holder, name = value, part
        if isinstance(holder, type) and name.startswith("__") and not name.endswith("__"):
            name = f"_{holder.__name__.lstrip('_')}{name}"  # private: stored under its mangled name
        value = getattr(holder, "__dict__", {}).get(name, _ABSENT)
        if value is _ABSENT:
            owner = getattr(holder, "__name__", holder)
            raise ChangeRefused(Outcome.DRIFTED, f"{qualname} does not exist ({owner} has no {name})")
    return holder, name, value


class AttributeHandle:
    """The names that one change has set; `undo` restores them unless they have been set again since."""

    def __init__(self, qualname: str) -> None:
        self.qualname = qualname
        self.made_in = ""  # the module that made the value, if other modules may have imported it from the target
        self._set: list[tuple[Any, str, Any, Any]] = []  # holder, name, before, now

    def set(self, holder: Any, name: str, value: Any) -> None:
        self._set.append((holder, name, vars(holder).get(name, _ABSENT), value))
        setattr(holder, name, value)

    def undo(self) -> None:
        """Restores all names. Raises ChangeRefused if the value has been wrapped since."""
        wrapped, target = [], self._set[:1]
        while self._set:
            holder, name, before, now = self._set.pop()
            current = vars(holder).get(name, _ABSENT)
            if current is not now:
                wrapped += [name] if _leads_to(current, now) else []
            elif before is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, before)
        for holder, name, before, now in target:
            if self.made_in and not _has_another_home(now, self.made_in):
                for module, alias in _aliases(now, holder, name):  # imported since by other modules
                    if module.__name__ != self.made_in:
                        setattr(module, alias, before)
        if wrapped:
            raise ChangeRefused(Outcome.CONFLICT, f"{', '.join(wrapped)} has been wrapped again since")

    def in_force(self, module: ModuleType) -> bool:
        """Whether the module's name still leads to the value that was set."""
        try:
            return not self._set or _leads_to(raw_attribute(module, self.qualname)[2], self._set[0][3])
        except ChangeRefused:
            return False


def _leads_to(value: Any, wanted: Any) -> bool:
    """Whether `value` is `wanted`, or a wrapper around it."""
    for _ in range(8):
        if value is wanted:
            return True
        value = getattr(value, "__wrapped__", None)
    return False


def _has_another_home(value: Any, made_in: str) -> bool:
    """Whether a module other than `made_in` defines `value` under its own name: it was not made for the target."""
    home = getattr(value, "__module__", None)
    if not isinstance(home, str) or home == made_in:
        return False
    return getattr(sys.modules.get(home), getattr(value, "__qualname__", ""), None) is value


def replace_attribute(module: ModuleType, change: Replace) -> AttributeHandle:
    """Puts the replacement in place of the target and of every alias of it in imported modules.

    Aliases of values from outside the target's package (a number, None, a module, a dtype) are left alone. Raises
    ChangeRefused: drifted if the target does not exist, conflict if it belongs to another package.
    """
    holder, name, raw = raw_attribute(module, change.qualname)
    function = getattr(raw, "__func__", raw)
    owner = getattr(function, "__module__", None)
    own = isinstance(owner, str) and owner.partition(".")[0] == module.__name__.partition(".")[0]
    if isinstance(owner, str) and callable(function) and not own:
        by = f"{owner}.{getattr(raw, '__qualname__', name)}"
        raise ChangeRefused(Outcome.CONFLICT, f"{change.target} has been replaced by {by}")
    new = change.factory(raw)
    handle = AttributeHandle(change.qualname)
    try:
        handle.set(holder, name, new)
        if isinstance(holder, ModuleType) and own:
            handle.made_in = getattr(change.factory, "__module__", "?")
            for other, alias in _aliases(raw, holder, name):
                handle.set(other, alias, new)
    except BaseException:
        handle.undo()
        raise
    return handle


def _aliases(value: Any, holder: ModuleType, name: str) -> list[tuple[ModuleType, str]]:
    """(module, name) of the names that ``from … import`` created in modules imported earlier."""
    is_value = functools.partial(operator.is_, value)
    # during the import of the module only its own package can have taken it
    within = "" if hooks.executed(holder.__name__) else holder.__name__.partition(".")[0]
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(within) and isinstance(m, ModuleType)]
    return [
        (module, alias)
        for module in modules
        if any(map(is_value, list(vars(module).values())))
        for alias, bound in list(vars(module).items())
        if bound is value and not (module is holder and alias == name)
    ]


def add_name(module: ModuleType, change: Provide) -> AttributeHandle | None:
    """Adds the name to the module; None if it exists already."""
    if change.name in vars(module):
        return None
    handle = AttributeHandle(change.name)
    handle.set(module, change.name, change.factory(module))
    return handle
