"""Races that the emulated device has seen: uses of the same bytes on two streams that nothing orders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

_OWN = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SHOWN = 4  # frames


def described(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The pairs that the native module reports, each once, in the order in which the two uses were issued."""
    return [
        f"race: {_use(each['before'])}\n    and {_use(each['after'])}\n"
        "    Nothing makes the second wait for the first: no event, wait_stream or wait() of the work, "
        "no record_stream before the memory was freed."
        for each in {repr(each): each for each in found}.values()
    ]


def _use(use: Mapping[str, Any]) -> str:
    """what: operator, argument and tensor; stream: its number, 0 for the default one, negative for a process group's;
    node: the node of the backward pass, or ""; stack: (file, line, function), innermost first."""
    stream = use["stream"]
    where = "the default stream" if stream == 0 else f"stream {stream}"
    if stream < 0:
        where = f"the stream of process group {-stream}"
    frames = [f"{file}:{line} in {function}" for file, line, function in use["stack"] if _concerns(file)][:_SHOWN]
    place = "\n".join(f"      {frame}" for frame in frames) or "      (the backward pass, without Python frames)"
    node = f", {use['node']}" if use["node"] else ""
    return f"{'write' if use['writes'] else 'read'} by {use['what']} on {where}{node}\n{place}"


def _concerns(file: str) -> bool:
    """Whether a frame belongs to the job rather than to torch or the lab."""
    return f"{os.sep}torch{os.sep}" not in file and not file.startswith(_OWN)
