"""The traces of device_map on a model, accelerate's dispatch hooks and `hf_device_map`: find, describe, remove.

Finding them imports nothing. transformers 5.0 and later leave no trace of a map with a single device.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..outcome import shortened_list
from . import GuardError

NAMES = 3  # modules per device in a message


@dataclass(frozen=True)
class Dispatch:
    """What device_map did to a model.

    placed: module name -> the device on which its hook computes, e.g. "cuda:1"; parents precede their children.
    offloaded: modules whose weights accelerate keeps elsewhere between calls, or that have a parameter on meta.
    mapped: the devices in the `hf_device_map` of all modules that have one.
    """

    model: Any
    placed: dict[str, str]
    offloaded: tuple[str, ...]
    mapped: frozenset[str]

    def elsewhere(self, device: str) -> bool:
        return any(each != device for each in self.placed.values())

    def describe(self) -> str:
        """One line per device with the outermost modules computed on it."""
        return "\n".join(f"  {device}: {shortened_list(names, NAMES)}" for device, names in self._outermost().items())

    def _outermost(self) -> dict[str, list[str]]:
        hooks = ((name, hook) for name, module in self.model.named_modules() for hook in _hooks(module))
        roots = {name for name, hook in hooks if getattr(hook, "io_same_device", False) is True}
        if roots.issuperset(self.placed):
            roots = set()
        outermost: dict[str, list[str]] = {}
        for name, device in self.placed.items():
            above = _above(name, self.placed)
            if name not in roots and (above is None or above in roots or self.placed[above] != device):
                outermost.setdefault(device, []).append(name or "the whole model")
        return outermost

    def remove(self) -> int:
        """Removes accelerate's dispatch hooks and the map; returns the number of modules that had a hook.

        The parameters stay where they are. Raises GuardError if the model also has other hooks of accelerate.
        """
        accelerate = importlib.import_module("accelerate.hooks")
        hooked = []
        for name, module in self.model.named_modules():
            kinds = {isinstance(hook, accelerate.AlignDevicesHook) for hook in _hooks(module)}
            if len(kinds) > 1 or (name in self.placed and kinds != {True}):
                raise GuardError(
                    f"DSFIX_DEVICE_MAP=repair: {name or 'the model'} has an accelerate hook that device_map did not "
                    "create and that would be lost. Load the model without device_map."
                )
            if kinds == {True}:
                hooked.append(module)
        for module in hooked:
            accelerate.remove_hook_from_module(module)
            forward = vars(module).get("forward")
            if getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module:
                del module.forward  # accelerate leaves the class's method on the module
        for module in self.model.modules():
            vars(module).pop("hf_device_map", None)
        return len(hooked)


def find_dispatch(model: Any, here: str) -> Dispatch | None:
    """The traces of device_map on a model, or None; `here` is this rank's device, e.g. "cuda:0"."""
    if not hasattr(model, "named_modules"):
        return None
    placed: dict[str, str] = {}
    offloaded: dict[str, None] = {}
    mapped: set[str] = set()
    for name, module in model.named_modules():
        for hook in _hooks(module):
            device = getattr(hook, "execution_device", None)
            if device is not None:
                placed[name] = label(device, here)
            if getattr(hook, "offload", False) is True:
                offloaded[name] = None
        mapped.update(label(device, here) for device in _map(module).values())
    if not placed and not offloaded and not mapped:
        return None
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            offloaded[name.rpartition(".")[0]] = None
    return Dispatch(model, placed, tuple(offloaded), frozenset(mapped))


def label(device: Any, here: str) -> str:
    """A device as a map or hook names it (1, "cuda:1", "cuda", "cpu", "disk", a torch.device) -> "cuda:1", "cpu"."""
    kind = here.partition(":")[0]
    text = str(device)
    if text.isdecimal():
        return f"{'cuda' if kind == 'cpu' else kind}:{text}"
    if text == kind:  # the current device
        return here
    return "cpu" if text.startswith("cpu:") else text


def _hooks(module: Any) -> Iterator[Any]:
    # accelerate sets plain attributes; getattr on a PEFT wrapper would find those of the wrapped model
    hook = vars(module).get("_hf_hook")
    return iter(()) if hook is None else _single(hook)


def _single(hook: Any) -> Iterator[Any]:
    if hasattr(hook, "hooks"):  # a SequentialHook, possibly nested
        for each in hook.hooks:
            yield from _single(each)
    else:
        yield hook


def _map(module: Any) -> dict[str, Any]:
    device_map = vars(module).get("hf_device_map")
    return device_map if isinstance(device_map, dict) else {}


def _above(name: str, placed: dict[str, str]) -> str | None:
    while name:
        name = name.rpartition(".")[0]
        if name in placed:
            return name
    return None
