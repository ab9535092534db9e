"""Validates a plug-in's declaration, which may not be what the engine and the commands expect."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any, Callable

from packaging.specifiers import SpecifierSet

from ..patch import Edit, Patch, Provide, Replace, Severity, Source


def first_error(patch: Patch) -> str:
    """The first field that has a wrong type or cannot be read, as a sentence, or ""."""
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


def _texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_text, (*value.keys(), *value.values())))


def _ranges(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _text(name) and SpecifierSet(each) is not None for name, each in value.items()
    )


def _change(value: Any) -> bool:
    if isinstance(value, Edit):
        texts = (value.target, value.code, value.anchor)
        return all(map(_text, texts)) and isinstance(value.count, int) and _tuple_of(callable)(value.uses)
    if isinstance(value, Provide):
        return _text(value.module) and _text(value.name) and callable(value.factory)
    return isinstance(value, Replace) and callable(value.factory)


def _source(value: Any) -> bool:
    return isinstance(value, Source) and _text(value.target) and _text(value.code)


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "title": ("a string", _text),
    "severity": ("a Severity", lambda value: isinstance(value, Severity)),
    "affects": ("specifiers by distribution", _ranges),
    "changes": ("a tuple of changes", _tuple_of(_change)),
    "symptom": ("a regular expression", lambda value: _text(value) and re.compile(value) is not None),
    "upstream": ("links with what they did", _texts),
    "fixed_in": ("a version or None", _no_text_or(_text)),
    "present": ("a tuple of Sources", _tuple_of(_source)),
    "fixed": ("a tuple of Sources", _tuple_of(_source)),
    "continued_by": ("an id or None", _no_text_or(_text)),
    "config": ("a function or None", _no_text_or(callable)),
    "default": ("a bool", lambda value: isinstance(value, bool)),
    "ranks": ("a number of ranks", lambda value: type(value) is int and value > 0),
    "device": ("'cuda' or 'cpu'", lambda value: value in ("cuda", "cpu")),
}
