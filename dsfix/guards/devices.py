"""`check_tensors_device`: one clear error if tensors are on different devices."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..outcome import shortened_list

_SHOWN = 5  # names per device in the message


class DeviceMismatch(RuntimeError):
    """Tensors are on more than one device.

    devices: device, as torch writes it, -> the names of the tensors on it: ``{"cuda:0": ["x"], "cpu": ["y"]}``.
    """

    def __init__(self, devices: dict[str, list[str]]) -> None:
        super().__init__(devices)
        self.devices = devices

    def __str__(self) -> str:
        fewest_first = sorted(self.devices.items(), key=lambda each: len(each[1]))
        places = "; ".join(f"{shortened_list(names, _SHOWN)} on {device}" for device, names in fewest_first)
        return f"tensors are on {len(self.devices)} devices: {places}"


def check_tensors_device(*tensors: Any, **named: Any) -> None:
    """Raises DeviceMismatch unless all tensors among the arguments are on one device.

    Lists, tuples and mappings are searched recursively; other non-tensors are ignored, and so are the lengths of a
    PackedSequence, which torch keeps on the CPU. The error names a tensor by its path: ``tensors[0]`` is the first
    positional argument, ``batch['labels'][0]`` is inside the keyword argument ``batch``.

    All tensors are checked, including those on meta and 0-dim tensors on the CPU: arithmetic mixes the latter with
    other devices, but `torch.stack` and most other operators do not. Imports nothing and copies nothing.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # no tensor can exist
        return
    kind, device = torch.Tensor, None
    values = [*tensors, *named.values()] if named else list(tensors)
    entered: set[int] = set()
    for value in values:  # grows during the iteration
        if isinstance(value, kind):
            if device is None:
                device = value.device
            elif value.device != device:
                raise DeviceMismatch(_by_device(torch, tensors, named))
        elif value is not None and id(value) not in entered:
            children = _children(torch, value)
            if children:
                entered.add(id(value))
                values.extend(child for _, child in children)


def _children(torch: Any, value: Any) -> list[tuple[Any, Any]]:
    """(index or key, value) of the members of a container; empty for anything else."""
    if isinstance(value, (list, tuple)):
        if isinstance(value, torch.nn.utils.rnn.PackedSequence):
            return [("data", value.data)]
        return list(enumerate(value))
    if isinstance(value, (dict, Mapping)):  # `dict` is the faster check
        return list(value.items())
    return []


def _by_device(torch: Any, tensors: Iterable[Any], named: dict[str, Any]) -> dict[str, list[str]]:
    by_device: dict[str, list[str]] = {}
    named_arguments = [*((f"tensors[{position}]", value) for position, value in enumerate(tensors)), *named.items()]
    for path, tensor in _paths(torch, named_arguments):
        by_device.setdefault(str(tensor.device), []).append(path)
    return by_device


def _paths(torch: Any, given: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    waiting = given[::-1]
    entered: set[int] = set()
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield path, value
        elif id(value) not in entered:
            children = _children(torch, value)
            if children:
                entered.add(id(value))
                waiting.extend((f"{path}[{key!r}]", child) for key, child in reversed(children))
