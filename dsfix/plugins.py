"""Patches that other distributions bring: what they name in the entry-point group "dsfix.patches"."""

from __future__ import annotations

import os
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Callable

from packaging.specifiers import SpecifierSet

from .patch import Edit, Patch, Provide, Replace, Severity, Source, Wrap

GROUP = "dsfix.patches"
_GROUP_HEADER = b"[dsfix.patches]"


@dataclass(frozen=True)
class Plugin:
    """What one entry point names: a package whose modules are patches, or one module that is a patch.

    distribution: normalized, the first part of its patches' ids. reason: why there is no such module, or "".
    """

    distribution: str
    module: str
    reason: str = ""


def declared() -> Iterator[Plugin]:
    """Every entry point of the group, by distribution; each distribution once, as importlib.metadata finds it."""
    for name in sorted(set(_candidates())):
        try:
            found = metadata.distribution(name).entry_points
        except Exception as error:  # metadata that cannot be read
            yield Plugin(name, "entry_points.txt", f"{type(error).__name__}: {error}")
            continue
        for module in sorted({point.value.strip() for point in found if point.group == GROUP}):
            is_module = all(part.isidentifier() for part in module.split("."))
            yield Plugin(name, module, "" if is_module else "it is not the name of a module")


def _candidates() -> Iterator[str]:
    """The normalized names of the distributions that have the group.

    importlib.metadata.entry_points looks as well, and takes three times as long to find that there is none.
    """
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix in (".dist-info", ".egg-info"):
                try:
                    with open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                        if _GROUP_HEADER in file.read():
                            yield re.sub(r"[-_.]+", "-", stem.partition("-")[0]).lower()
                except OSError:
                    continue


def flaw(patch: Patch) -> str:
    """Which field of a declaration is not what the engine and the commands take it for, as a sentence, or ""."""
    for name, (wanted, fits) in _FIELDS.items():
        value = getattr(patch, name)
        try:
            good = fits(value)
        except Exception:  # no specifier, no regular expression
            good = False
        if not good:
            return f"its PATCH has {name}={reprlib.repr(value)}, which is not {wanted}"
    return ""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _no_text_or(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _tuple_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(fits, value))


def _ranges(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _text(name) and SpecifierSet(each) is not None for name, each in value.items()
    )


def _change(value: Any) -> bool:
    if isinstance(value, Edit):
        return all(map(_text, (value.target, value.code, value.anchor))) and isinstance(value.count, int)
    if isinstance(value, Provide):
        return _text(value.module) and _text(value.name) and callable(value.factory)
    return isinstance(value, (Replace, Wrap)) and callable(
        value.factory if isinstance(value, Replace) else value.wrapper
    )


def _source(value: Any) -> bool:
    return isinstance(value, Source) and _text(value.target) and _text(value.code)


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "title": ("a string", _text),
    "severity": ("a Severity", lambda value: isinstance(value, Severity)),
    "affects": ("specifiers by distribution", _ranges),
    "changes": ("a tuple of changes", _tuple_of(_change)),
    "symptom": ("a regular expression", lambda value: _text(value) and re.compile(value) is not None),
    "upstream": ("a tuple of strings", _tuple_of(_text)),
    "fixed_in": ("a version or None", _no_text_or(_text)),
    "present": ("a tuple of Sources", _tuple_of(_source)),
    "fixed": ("a tuple of Sources", _tuple_of(_source)),
    "continued_by": ("an id or None", _no_text_or(_text)),
    "before": ("a module's name or None", _no_text_or(_text)),
    "default": ("a bool", lambda value: isinstance(value, bool)),
    "ranks": ("a number of ranks", lambda value: type(value) is int and value > 0),
    "device": ("'cuda' or 'cpu'", lambda value: value in ("cuda", "cpu")),
}
