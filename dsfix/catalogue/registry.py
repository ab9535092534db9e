"""The catalogue: all patches, of dsfix.patches and of plug-ins, by id."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, NamedTuple, TypeVar

from ..outcome import error_text
from ..patch import Patch
from . import entry_points

INDEX = Path(__file__).with_name("index.json")
PROVEN = Path(__file__).with_name("proven.txt")
"""Digests of the sources to which the source proof applied each patch, one line per patch."""
_OWN = "dsfix"
_PACKAGE = "dsfix.patches"
_CHECKOUT = Path(__file__).resolve().parents[2] / "patches"  # next to the package, where no import finds it


class Summary(NamedTuple):
    """What decides whether a patch has to be loaded at all. module: its name; distribution: whose it is."""

    id: str
    title: str
    severity: str
    affects: Mapping[str, str]
    default: bool
    module: str
    distribution: str = _OWN


class Entry(NamedTuple):
    """One patch of the catalogue: its id is the name of its module, for a plug-in "distribution:module"."""

    id: str
    patch: Patch
    module: ModuleType
    distribution: str = _OWN

    @property
    def docstring(self) -> str:
        return self.module.__doc__ or ""

    @property
    def area(self) -> str:
        return self.module.__name__.rpartition(".")[0].rpartition(".")[2]

    @property
    def summary(self) -> Summary:
        patch = self.patch
        about = patch.title, patch.severity.value, dict(patch.affects), patch.default
        return Summary(self.id, *about, self.module.__name__, self.distribution)


class BrokenEntry(NamedTuple):
    """A patch module, or a plug-in, that could not be loaded."""

    id: str
    reason: str
    what: str = "patch"

    def __str__(self) -> str:
        return f"{self.what} {self.id} cannot be loaded and is skipped: {self.reason}"


@functools.cache
def load() -> tuple[dict[str, Entry], tuple[BrokenEntry, ...]]:
    """All patches ordered by id, those of plug-ins after dsfix's own, and the broken ones."""
    return _by_id((*_own_entries(), *_plugin_entries()))


def index(remember: Callable[[object, Callable[[], Any]], Any]) -> tuple[dict[str, Summary], tuple[BrokenEntry, ...]]:
    """The summaries of what `load` returns. dsfix's own patches are imported only if one of their files has changed.

    remember: returns for a key what it returned for the same key before, else what the function returns.
    """
    key = _stamp()
    cached = None if key is None else remember((Summary._fields, key), _own_summaries)
    if cached is None:
        entries, broken = load()
        return {patch_id: each.summary for patch_id, each in entries.items()}, broken
    plugins = (each.summary if isinstance(each, Entry) else each for each in _plugin_entries())
    return _by_id((*(Summary(*each) for each in cached), *plugins))


def index_contents() -> dict[str, Any]:
    """What index.json should have: `of`, a digest of all files of dsfix.patches, and their `summaries`."""
    return {"of": _files_digest(), "summaries": _loaded_summaries()}


def _files_digest() -> str:
    digest = hashlib.blake2b(digest_size=16)
    for folder, each in sorted((folder, each.path) for folder, each in _files()):
        name = os.path.basename(each)
        if name.endswith(".py") and not name.startswith("_"):
            with open(each, "rb") as file:
                digest.update(f"{folder}/{name}".encode() + file.read())
    return digest.hexdigest()


def _files() -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The files of dsfix.patches, each with its folder there. Raises OSError if it is not a directory (a zip)."""
    for place in getattr(_package()[0], "__path__", ()):
        for each in os.scandir(place):
            if not each.is_dir():
                yield "", each
            elif each.name != "__pycache__":
                yield from ((each.name, inside) for inside in os.scandir(each.path) if inside.name != "__pycache__")


@functools.cache
def _stamp() -> bytes | None:
    """A digest of the names, times and sizes of the patches' files; None if one is unknown (a zip, a dangling link)."""
    try:
        stamps = [(f"{folder}/{each.name}", each.stat()) for folder, each in _files()]
    except OSError:
        return None
    stamps_by_name = sorted((name, status.st_mtime_ns, status.st_size) for name, status in stamps)
    return hashlib.blake2b(repr(stamps_by_name).encode(errors="surrogatepass"), digest_size=16).digest()


def _own_summaries() -> list[list[object]] | None:
    """The summaries of dsfix's own patches, which are imported only if index.json does not match their files."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(INDEX.read_text(encoding="utf-8"))
        if known["of"] == _files_digest():
            return list(known["summaries"])
    return _loaded_summaries()


def _loaded_summaries() -> list[list[object]] | None:
    """None if a patch is broken, which may be fixed without a change of its file."""
    entries, broken = load()
    own = (each.summary for each in entries.values() if each.distribution == _OWN)
    return None if broken else [list(each) for each in own]


def patch(summary: Summary, remember: Callable[[object, Callable[[], Any]], Any]) -> Patch:
    """What applies the patch: its changes and evidence. Its file is loaded only if they are not known, or not all text.

    Raises ImportError if it has to be loaded and cannot be.
    """
    stamp = _stamp() if summary.distribution == _OWN else None
    text = stamp and remember(("patch", summary.module, stamp), lambda: entry(summary).patch.as_text())
    if text:
        return Patch.from_text(text, summary.title, summary.severity, summary.affects)
    return entry(summary).patch


def is_proven(digest: str) -> bool:
    """Whether the source proof applied a patch to a source, by the digest of both, `engine.verdict.fingerprint`."""
    return digest in _digests()


@functools.cache
def _digests() -> frozenset[str]:
    try:
        return frozenset(PROVEN.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # then the source itself is read
        return frozenset()


def entry(summary: Summary) -> Entry:
    """The patch itself. Raises ImportError if it can no longer be loaded."""
    loaded = _entry(summary.id, summary.module, summary.distribution)
    if isinstance(loaded, BrokenEntry):
        raise ImportError(loaded.reason)
    return loaded


_Known = TypeVar("_Known", Entry, Summary)


def _by_id(loaded: Iterable[_Known | BrokenEntry]) -> tuple[dict[str, _Known], tuple[BrokenEntry, ...]]:
    known: dict[str, _Known] = {}
    broken: list[BrokenEntry] = []
    for each in loaded:
        if isinstance(each, BrokenEntry):
            broken.append(each)
        elif each.id in known:
            first = getattr(known[each.id].module, "__name__", known[each.id].module)
            broken.append(BrokenEntry(each.id, f"{first} has the same id and takes precedence"))
        else:
            known[each.id] = each
    return known, tuple(broken)


def _own_entries() -> Iterator[Entry | BrokenEntry]:
    patches, reason = _package()
    if patches is None:
        yield BrokenEntry(_PACKAGE, f"{reason}; reinstall dsfix")
    else:
        yield from (_entry(_id_of_module(module), f"{_PACKAGE}.{module}") for module in _modules(patches))


def _package() -> tuple[ModuleType | None, str]:
    package, reason = _import(_PACKAGE)
    if package is not None:
        return package, reason
    return _try_import(functools.partial(_load_checkout, _PACKAGE))


def _load_checkout(name: str) -> ModuleType:
    """The package of patches of a checkout that is not installed, as the module `name`. Raises ModuleNotFoundError."""
    spec = importlib.util.spec_from_file_location(name, _CHECKOUT / "__init__.py")
    if spec is None or spec.loader is None or not (_CHECKOUT / "_template.py").is_file():  # not another package's
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _modules(package: ModuleType) -> list[str]:
    """The names of a package's patches, in it and in its folders, by id; names with a leading "_" are skipped."""
    names = []
    for module in pkgutil.iter_modules(package.__path__):
        folders = [os.path.join(place, module.name) for place in package.__path__]
        inside = pkgutil.iter_modules(folders, f"{module.name}.") if module.ispkg else [module]
        names += [info.name for info in inside if not _id_of_module(info.name).startswith("_")]
    return sorted(names, key=_id_of_module)


def _id_of_module(name: str) -> str:
    return name.rpartition(".")[2]


def _plugin_entries() -> Iterator[Entry | BrokenEntry]:
    for plugin in entry_points.declared():
        module, reason = (None, plugin.reason) if plugin.reason else _import(plugin.module)
        if module is None:
            yield BrokenEntry(f"{plugin.distribution} ({plugin.module})", reason, "plug-in")
            continue
        inside = [f"{plugin.module}.{each}" for each in _modules(module)] if hasattr(module, "__path__") else None
        if inside == []:
            yield BrokenEntry(f"{plugin.distribution} ({plugin.module})", "it holds no patch", "plug-in")
        from . import declarations

        for name in [plugin.module] if inside is None else inside:
            loaded = _entry(f"{plugin.distribution}:{_id_of_module(name)}", name, plugin.distribution)
            flaw = declarations.first_error(loaded.patch) if isinstance(loaded, Entry) else ""
            yield BrokenEntry(loaded.id, flaw) if flaw else loaded


def _entry(patch_id: str, name: str, distribution: str = _OWN) -> Entry | BrokenEntry:
    module, reason = _import(name)
    patch = getattr(module, "PATCH", None)
    if module is not None and _is_stale_import(patch):
        module, reason = _try_import(functools.partial(importlib.reload, module))
        patch = getattr(module, "PATCH", None)
    if module is None or not isinstance(patch, Patch):
        return BrokenEntry(patch_id, reason or "it declares no PATCH")
    return Entry(patch_id, patch, module, distribution)


def _is_stale_import(patch: object) -> bool:
    """Whether a plug-in's module was imported by an earlier dsfix, since removed from sys.modules."""
    kind = type(patch)
    return kind is not Patch and (kind.__module__, kind.__qualname__) == (Patch.__module__, Patch.__qualname__)


def _import(name: str) -> tuple[ModuleType | None, str]:
    return _try_import(functools.partial(importlib.import_module, name))


def _try_import(load: Callable[[], ModuleType]) -> tuple[ModuleType | None, str]:
    try:
        return load(), ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # one broken file must not affect the others, even if it calls sys.exit
        return None, error_text(error)


def catalogue() -> dict[str, Entry]:
    return load()[0]


def plugin_distributions() -> list[str]:
    """The other distributions whose patches were loaded."""
    return list(dict.fromkeys(each.distribution for each in catalogue().values() if each.distribution != _OWN))
