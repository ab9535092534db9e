"""Post-import hooks: a callback each time that a module has been executed.

wrapt's post-import hooks fire once per name: after a reload or a second import, the module would be unpatched.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable

from .garbage import gc_paused

Callback = Callable[[ModuleType, str], None]
Before = Callable[[str], None]


class Finder:
    """The first entry of sys.meta_path while anything is watched: delegates to the others and adds the callback.

    The callback gets the module and the name that it is imported by, which differs from its own in a program; `before`,
    if given, is called with the name of each module before it is executed. Neither raises anything but StrictError.
    """

    def __init__(self, callback: Callback, withdraw: Callable[[], None], before: Before | None = None) -> None:
        self.callback, self.withdraw, self.before = callback, withdraw, before
        self.names: set[str] = set()
        self._local = threading.local()

    def watch(self, names: Iterable[str]) -> None:
        """Calls `callback` with each of these modules after every execution from now on."""
        self.names.update(names)
        if self.names and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.names:
            return None
        active: set[str] = self._local.__dict__.setdefault("active", set())
        if name in active:
            return None
        active.add(name)  # another hook's finder may ask all finders again, this one included
        try:
            for finder in list(sys.meta_path):
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        if hasattr(spec.loader, "exec_module") or hasattr(spec.loader, "get_code"):
                            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
                        return spec
        finally:
            active.discard(name)
        return None


class _Loader:
    """Replaces a module's loader until the module is executed; the module itself only sees its own loader."""

    def __init__(self, loader: Any, finder: Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_loader"), name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        if self._finder.before is not None:
            self._finder.before(module.__name__)
        if hasattr(self._loader, "exec_module"):
            self._loader.exec_module(module)
        else:  # zipimporter before Python 3.10
            exec(self._loader.get_code(module.__name__), module.__dict__)
        with gc_paused():
            self._finder.callback(module, module.__name__)


def withdraw_earlier_dsfix() -> None:
    """Reverts the changes of an earlier dsfix that was removed from sys.modules."""
    for finder in list(sys.meta_path):
        kind = type(finder)
        if (kind.__module__, kind.__qualname__) == (__name__, Finder.__qualname__) and kind is not Finder:
            finder.withdraw()  # type: ignore[attr-defined]


def wait_for(name: str) -> None:
    """Waits for an import in another thread; returns immediately if it is this thread's own, or finished."""
    if executed(name) is None:
        # `import` waits in the same way, but would start again if the other thread's import has failed
        importlib._bootstrap._lock_unlock_module(name)  # type: ignore[attr-defined]


def executed(name: str) -> ModuleType | None:
    """The module, if its import has finished."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module
