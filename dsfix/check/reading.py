"""Reads a config file as DeepSpeed, transformers and accelerate do.

DeepSpeed uses hjson, which allows comments and trailing commas, and rejects duplicate keys (all releases since 0.12.0:
runtime/config.py); transformers and accelerate use json, and YAML for accelerate's own file.
"""

from __future__ import annotations

import collections
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, NoReturn

_MAX_BYTES = 16 << 20  # the largest config in public repositories has some 10 KB
_MAX_HJSON = 1 << 20  # characters; hjson's parser is written in Python
_BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Unreadable(ValueError):
    """The config cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class Reading:
    """The content of a config file.

    plain_json: whether transformers and accelerate can read it as well. duplicates: duplicate keys of one block.
    """

    content: dict[str, Any]
    plain_json: bool = True
    duplicates: tuple[str, ...] = ()


def read(path: str) -> Reading:
    """Reads a JSON, hjson or (by its extension) YAML file. Raises Unreadable."""
    return from_text(path, _text(path))


def from_text(path: str, text: str) -> Reading:
    """Like `read`, for the text of a file; messages name `path`."""
    reading = _yaml(path, text) if path.endswith((".yaml", ".yml")) else _json(path, text)
    if not isinstance(reading.content, dict):
        kind = type(reading.content).__name__
        raise Unreadable(f"{path} holds no config: expected an object, got {kind}")
    return reading


def _text(path: str) -> str:
    if "\0" in path:
        raise Unreadable(f"{path!r} cannot be read: the name contains a NUL")
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise Unreadable(f"{path} is a directory, expected a file")
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
            raise Unreadable(f"{path} is not a regular file")
        if status.st_size > _MAX_BYTES:
            raise Unreadable(f"{path} is too large for a config: {status.st_size >> 20} MiB")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    if not data.strip():
        raise Unreadable(f"{path} is empty")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            raise Unreadable(f"{path} is encoded in {encoding}, but DeepSpeed reads UTF-8: save it as UTF-8")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Unreadable(
            f"{path} starts with a UTF-8 byte order mark, which json rejects: save it as UTF-8 without BOM"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"{path} is not valid UTF-8: byte 0x{data[error.start]:02x} in line {line}") from None


class _Pairs:
    """The object_pairs_hook: later values win, as in json; duplicate keys are recorded."""

    def __init__(self) -> None:
        self.duplicates: dict[str, None] = {}

    def __call__(self, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        pairs = list(pairs)
        counted = collections.Counter(key for key, _ in pairs)
        self.duplicates.update(dict.fromkeys(key for key, count in counted.items() if count > 1))
        return dict(pairs)


def _json(path: str, text: str) -> Reading:
    pairs = _Pairs()

    def constant(name: str) -> NoReturn:
        raise Unreadable(f"{path} has the value {name}, which is not valid JSON: DeepSpeed reads it as a string")

    try:
        content = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
        return Reading(content, duplicates=tuple(pairs.duplicates))
    except RecursionError:
        raise _too_deep(path) from None
    except json.JSONDecodeError as error:
        return _hjson(path, text, error)


def _hjson(path: str, text: str, why: json.JSONDecodeError) -> Reading:
    not_json = f"{path} is not valid JSON: line {why.lineno} column {why.colno}: {why.msg}"
    if len(text) > _MAX_HJSON:
        raise Unreadable(not_json)
    loads, error_type = _hjson_module(not_json, path, text)
    pairs = _Pairs()
    try:
        content = loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise _too_deep(path) from None
    except error_type as error:
        where = f"line {error.lineno} column {error.colno}: {error.msg}"  # type: ignore[attr-defined]
        raise _template(path, text) or Unreadable(f"{path} is neither valid JSON nor hjson: {where}") from None
    if not isinstance(content, dict):
        raise _template(path, text) or Unreadable(not_json)
    return Reading(content, plain_json=False, duplicates=tuple(pairs.duplicates))


def _hjson_module(not_json: str, path: str, text: str) -> tuple[Callable[..., Any], type[Exception]]:
    try:
        import hjson  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise _template(path, text) or Unreadable(
            f"{not_json}; DeepSpeed reads it with hjson (comments, trailing commas), which is not installed here"
        ) from None
    return hjson.loads, hjson.HjsonDecodeError


def _yaml(path: str, text: str) -> Reading:
    try:
        import yaml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise Unreadable(f"{path} is YAML, but PyYAML, a dependency of accelerate, is not installed here") from None
    try:
        return Reading(yaml.safe_load(text))
    except RecursionError:
        raise _too_deep(path) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1} column {mark.column + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise _template(path, text) or Unreadable(f"{path} is not valid YAML: {where}{problem}") from None


_IN_TEMPLATE = re.compile(r"\{\{[^{}\n]*\}\}|\{%[^\n]*?%\}|<%[^\n]*?%>")


def _template(path: str, text: str) -> Unreadable | None:
    """Returns what to say of a file that cannot be parsed because it is a template; None if it is none."""
    match = _IN_TEMPLATE.search(text)
    if match is None:
        return None
    line = text.count("\n", 0, match.start()) + 1
    return Unreadable(f"{path} is a template, not yet a config: line {line} has the placeholder {match.group()}")


def _too_deep(path: str) -> Unreadable:
    return Unreadable(f"{path} is nested too deeply")


def walk(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every key of a config with its value, blocks before their content."""
    todo: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), config)]
    while todo:
        above, block = todo.pop(0)
        for name, value in block.items():
            path = (*above, str(name))
            yield path, value
            if isinstance(value, dict):
                todo.append((path, value))
