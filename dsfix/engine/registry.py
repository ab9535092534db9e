"""The catalogue: every module of dsfix.patches, and what plug-ins bring, by id."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Callable

from ..patch import Patch
from . import plugins
from .outcome import UnknownPatch
from .settings import Settings

_OWN = "dsfix"


@dataclass(frozen=True)
class Entry:
    """One patch of the catalogue: its id is the name of its module, that of a plug-in's "distribution:module"."""

    id: str
    patch: Patch
    module: ModuleType
    distribution: str = _OWN

    @property
    def docstring(self) -> str:
        return self.module.__doc__ or ""


@dataclass(frozen=True)
class Broken:
    """A patch module, or a plug-in, that could not be loaded."""

    id: str
    reason: str
    what: str = "patch"


@functools.cache
def load() -> tuple[dict[str, Entry], tuple[Broken, ...]]:
    """All patches in the order of their ids, those of plug-ins behind dsfix's own, and what is broken."""
    name = "dsfix.patches"
    patches, reason = _load(name)
    if patches is None:  # a source checkout on sys.path, with its patches/ beside the package
        return {}, (Broken(name, f"{reason}; `pip install -e .` in the checkout, or leave its directory"),)
    loaded = [_entry(each, f"{name}.{each}") for each in _modules(patches)]
    for plugin in plugins.declared():
        loaded += _brought_by(plugin)
    entries: dict[str, Entry] = {}
    broken: list[Broken] = []
    for each in loaded:
        if isinstance(each, Broken):
            broken.append(each)
        elif each.id in entries:
            broken.append(Broken(each.id, f"{entries[each.id].module.__name__} has this id, too, and is used"))
        else:
            entries[each.id] = each
    return entries, tuple(broken)


def _modules(package: ModuleType) -> list[str]:
    """The names of a package's patches; a module whose name begins with "_" is none."""
    return sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))


def _brought_by(plugin: plugins.Plugin) -> Iterator[Entry | Broken]:
    module, reason = (None, plugin.reason) if plugin.reason else _load(plugin.module)
    if module is None:
        yield Broken(f"{plugin.distribution} ({plugin.module})", reason, "plug-in")
        return
    names = [f"{plugin.module}.{each}" for each in _modules(module)] if hasattr(module, "__path__") else [plugin.module]
    if not names:
        yield Broken(f"{plugin.distribution} ({plugin.module})", "it holds no patch", "plug-in")
    from . import declared

    for name in names:
        patch_id = f"{plugin.distribution}:{name.rpartition('.')[2]}"
        entry = _entry(patch_id, name, plugin.distribution)
        flaw = declared.flaw(entry.patch) if isinstance(entry, Entry) else ""
        yield Broken(patch_id, flaw) if flaw else entry


def _entry(patch_id: str, name: str, distribution: str = _OWN) -> Entry | Broken:
    module, reason = _load(name)
    patch = getattr(module, "PATCH", None)
    if module is not None and _of_a_forgotten_dsfix(patch):
        module, reason = _tried(functools.partial(importlib.reload, module))
        patch = getattr(module, "PATCH", None)
    if module is None or not isinstance(patch, Patch):
        return Broken(patch_id, reason or "it declares no PATCH")
    return Entry(patch_id, patch, module, distribution)


def _of_a_forgotten_dsfix(patch: object) -> bool:
    """Whether a plug-in's module has outlived the dsfix that loaded it, which was removed from sys.modules."""
    kind = type(patch)
    return kind is not Patch and (kind.__module__, kind.__qualname__) == (Patch.__module__, Patch.__qualname__)


def _load(name: str) -> tuple[ModuleType | None, str]:
    return _tried(functools.partial(importlib.import_module, name))


def _tried(load: Callable[[], ModuleType]) -> tuple[ModuleType | None, str]:
    try:
        return load(), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # one broken file must not cost the others, even if it calls sys.exit
        return None, f"{type(error).__name__}: {error}"


def complaints(settings: Settings) -> list[str]:
    """One sentence for each patch that is broken, and for each environment variable that could not be used."""
    entries, broken = load()
    found = list(settings.complaints)
    for variable, ids in (("DSFIX_SKIP", settings.skip), ("DSFIX_ONLY", settings.only or ())):
        found += [f"{variable}: {UnknownPatch(each, list(entries))}" for each in sorted(set(ids) - entries.keys())]
    return found + [f"{each.what} {each.id} cannot be loaded and is left out: {each.reason}" for each in broken]


def catalogue() -> dict[str, Entry]:
    """id -> entry, for every patch that could be loaded."""
    return load()[0]


def plugin_distributions() -> list[str]:
    """The other distributions whose patches were loaded."""
    return list(dict.fromkeys(each.distribution for each in catalogue().values() if each.distribution != _OWN))
