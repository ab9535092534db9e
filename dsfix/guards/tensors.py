"""Every tensor that a model holds: parameters, buffers and plain tensor attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

# packages whose modules move their plain attributes themselves
_SELF_MOVING = ("deepspeed", "transformers")
_REGISTERS = ("_parameters", "_buffers", "_modules")


class TensorRef(NamedTuple):
    """A tensor and the module that holds it.

    path: of the module, "" for the model itself; name: ``scale`` or, in a container, ``scales[0]``; kind: "parameter",
    "buffer" or "attribute"; own_apply: the module's class, or that of one around it, overrides `_apply`, hence `.to()`.
    """

    path: str
    module: torch.nn.Module
    own_apply: bool
    name: str
    kind: str
    tensor: torch.Tensor


def iter_tensors(model: torch.nn.Module) -> Iterator[TensorRef]:
    """Each tensor once, by its first path; parameters and buffers first. Modules in plain lists are not searched."""
    seen_ids: set[int] = set()
    modules = list(_modules(model))
    for members in (_registered, _plain):
        for path, module, own_apply in modules:
            for name, kind, tensor in members(module):
                if id(tensor) not in seen_ids:
                    seen_ids.add(id(tensor))
                    yield TensorRef(path, module, own_apply, name, kind, tensor)


def _modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    import torch

    seen_ids: set[int] = set()
    waiting = [("", model, False)]
    while waiting:
        path, module, own_apply = waiting.pop()
        if id(module) in seen_ids:
            continue
        seen_ids.add(id(module))
        apply = type(module)._apply
        own_apply = own_apply or (apply is not torch.nn.Module._apply and not apply.__module__.startswith("torch."))
        yield path, module, own_apply
        for name, child in reversed(module._modules.items()):
            if child is not None:
                waiting.append((f"{path}.{name}" if path else name, child, own_apply))


def _registered(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for kind, members in (("parameter", module._parameters), ("buffer", module._buffers)):
        for name, tensor in members.items():
            if tensor is not None:
                yield name, kind, tensor


def _plain(module: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    import torch

    if type(module).__module__.partition(".")[0] in _SELF_MOVING:
        return
    copies = {f"original_{name}" for name, _ in module._buffers.items()}  # in code copied from transformers
    ignored = _recomputed(module) | copies
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            if name not in ignored:
                yield name, "attribute", value
        elif isinstance(value, (list, tuple, dict)) and value and name not in _REGISTERS:
            for key, member in value.items() if isinstance(value, dict) else enumerate(value):
                if not isinstance(member, torch.Tensor):  # nor are the others, and a vocabulary is long
                    break
                yield f"{name}[{key!r}]", "attribute", member


def _recomputed(module: torch.nn.Module) -> set[Any]:
    """The attributes that a hook recomputes before each forward pass: weight_norm, spectral_norm, pruning."""
    hooks = module._forward_pre_hooks.values()
    return {getattr(hook, "name", None) or getattr(hook, "_tensor_name", None) for hook in hooks}
