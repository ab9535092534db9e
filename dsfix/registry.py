"""The catalogue: every module of dsfix.patches, by id."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

from .outcome import UnknownPatch
from .patch import Patch
from .settings import Settings


@dataclass(frozen=True)
class Entry:
    """One patch of the catalogue: its id is the name of its module."""

    id: str
    patch: Patch
    module: ModuleType

    @property
    def docstring(self) -> str:
        return self.module.__doc__ or ""


@dataclass(frozen=True)
class Broken:
    """A patch module that could not be loaded."""

    id: str
    reason: str


@functools.cache
def load() -> tuple[dict[str, Entry], tuple[Broken, ...]]:
    """All patches in the order of their ids, and the modules that are broken."""
    name = f"{__package__}.patches"
    patches, reason = _load(name)
    if patches is None:  # a source checkout on sys.path, with its patches/ beside the package
        return {}, (Broken(name, f"{reason}; `pip install -e .` in the checkout, or leave its directory"),)
    entries: dict[str, Entry] = {}
    broken: list[Broken] = []
    for name in sorted(info.name for info in pkgutil.iter_modules(patches.__path__)):
        loaded, reason = _load(f"{patches.__name__}.{name}")
        patch = getattr(loaded, "PATCH", None)
        if loaded is not None and isinstance(patch, Patch):
            entries[name] = Entry(name, patch, loaded)
        else:
            broken.append(Broken(name, reason or "it declares no PATCH"))
    return entries, tuple(broken)


def _load(name: str) -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # one broken file must not cost the others
        return None, f"{type(error).__name__}: {error}"


def complaints(settings: Settings) -> list[str]:
    """One sentence for each patch that is broken, and for each environment variable that could not be used."""
    entries, broken = load()
    found = list(settings.complaints)
    for variable, ids in (("DSFIX_SKIP", settings.skip), ("DSFIX_ONLY", settings.only or ())):
        found += [f"{variable}: {UnknownPatch(each, list(entries))}" for each in sorted(set(ids) - entries.keys())]
    return found + [f"patch {each.id} cannot be loaded and is left out: {each.reason}" for each in broken]


def catalogue() -> dict[str, Entry]:
    """id -> entry, for every patch that could be loaded."""
    return load()[0]
