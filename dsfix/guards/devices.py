"""`check_tensors_device`: one clear error where tensors are not all on one device."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SHOWN = 5  # names per device in the message


class DeviceMismatch(RuntimeError):
    """Tensors are on more than one device.

    devices: for each device, as torch writes it, the names of the tensors there: ``{"cuda:0": ["x"], "cpu": ["y"]}``.
    """

    def __init__(self, devices: dict[str, list[str]]) -> None:
        super().__init__(devices)
        self.devices = devices

    def __str__(self) -> str:
        fewest_first = sorted(self.devices.items(), key=lambda each: len(each[1]))
        places = "; ".join(f"{_shortened(names)} on {device}" for device, names in fewest_first)
        return f"tensors are on {len(self.devices)} devices: {places}"


def check_tensors_device(*tensors: Any, **named: Any) -> None:
    """Raises DeviceMismatch unless all tensors among the arguments are on one device.

    Lists, tuples and mappings are looked into, to any depth; all else that is no tensor is passed over, and so are the
    lengths of a PackedSequence, which torch keeps on the CPU. The error calls a tensor by its path: ``tensors[0]`` for
    the first positional argument, ``batch['labels'][0]`` for what was given as ``batch=``.

    Every tensor counts: one on meta, which holds no data, and a 0-dim one on the CPU, which arithmetic takes together
    with another device's, but `torch.stack` and most other operators do not. Imports nothing and copies nothing.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # nobody can have made a tensor
        return
    kind, device = torch.Tensor, None
    values = [*tensors, *named.values()] if named else list(tensors)
    entered: set[int] = set()
    for value in values:  # grows while it is walked
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
    """(index or key, value) of what a container holds; nothing for all else."""
    if isinstance(value, (list, tuple)):
        if isinstance(value, torch.nn.utils.rnn.PackedSequence):
            return [("data", value.data)]
        return list(enumerate(value))
    if isinstance(value, (dict, Mapping)):  # `dict` answers faster
        return list(value.items())
    return []


def _by_device(torch: Any, tensors: Iterable[Any], named: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    given = [*((f"tensors[{position}]", value) for position, value in enumerate(tensors)), *named.items()]
    for path, tensor in _paths(torch, given):
        found.setdefault(str(tensor.device), []).append(path)
    return found


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


def _shortened(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
