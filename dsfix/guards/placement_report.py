"""The placement report: which of a model's tensors are not where the engine expects them, and why."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .tensors import Held, held_by

if TYPE_CHECKING:
    import torch

# the modules of Qwen-Omni models that speak
_AUDIO_OUTPUT = {"talker", "token2wav", "code2wav"}
_AUDIO_HINT = (
    "the audio output of a Qwen-Omni model: with ms-swift, ENABLE_AUDIO_OUTPUT=0 leaves it out "
    "(https://github.com/modelscope/ms-swift/issues/3824)"
)


class _Cause(NamedTuple):
    why: str
    remedy: str


_UNKNOWN_TO_ZERO = _Cause(
    "without ds_id: attached after deepspeed.initialize, so that ZeRO-3 neither partitions nor steps it",
    "attach it before deepspeed.initialize",
)
_LEFT_BEHIND = _Cause(
    "the engine moves nothing of a model made under zero.Init, which itself places only what tensor, empty, zeros, "
    "ones, full, arange, eye and randn create inside it without device=",
    "DSFIX_PLACEMENT=move moves such buffers at deepspeed.initialize; or create them with device=",
)
_LATE = _Cause(
    "attached, replaced or moved after deepspeed.initialize, which does not look again",
    "module.to(engine.device) after it is attached",
)
_PLAIN = _Cause(
    "a plain attribute, which neither .to() nor the engine moves: right only if forward() moves it",
    "register_buffer(name, tensor, persistent=False)",
)
_ASTRAY = _Cause("not moved there, or moved away since", "model.to(device)")


@dataclass(frozen=True)
class Misplaced:
    """A tensor that is not where it is expected.

    module: the path of its module, "" for the model itself; name: its name there, ``scale`` or, in a container,
    ``scales[0]``; kind: "parameter", "buffer" or "attribute" (a plain tensor attribute); dtype, device: "float32",
    "cpu"; why, remedy: a clause each.
    """

    module: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    why: str
    remedy: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name

    def __str__(self) -> str:
        return f"{self.path}: {self.kind} {list(self.shape)} {self.dtype} on {self.device}"


@dataclass(frozen=True)
class PlacementReport:
    """What `placement_report` found; false where all is in place. As a string the whole list.

    device: where tensors are expected, as torch writes it; "" where none are expected anywhere.
    """

    device: str
    misplaced: tuple[Misplaced, ...]

    def __len__(self) -> int:
        return len(self.misplaced)

    def __iter__(self) -> Iterator[Misplaced]:
        return iter(self.misplaced)

    def __str__(self) -> str:
        return self.text()

    def text(self, limit: int = sys.maxsize) -> str:
        """The report, with no more than `limit` tensors by name."""
        if not self.misplaced:
            return f"all tensors are on {self.device}" if self.device else "no tensor is expected anywhere"
        lines = [f"{len(self)} tensor{'s are' if len(self) > 1 else ' is'} not where expected ({self.device}):"]
        groups: dict[_Cause, list[Misplaced]] = {}
        for each in self.misplaced:
            groups.setdefault(_Cause(each.why, each.remedy), []).append(each)
        for cause, group in groups.items():
            shown, limit = group[:limit], max(limit - len(group), 0)
            lines += [f"  {each}" for each in shown]
            if len(shown) < len(group):
                lines.append(f"  and {len(group) - len(shown)} more: print(dsfix.placement_report(engine)) has all")
            lines += [f"    why: {cause.why}", f"    remedy: {cause.remedy}"]
        parts = {part for each in self.misplaced for part in each.module.split(".")}
        if parts & _AUDIO_OUTPUT:
            lines.append(f"  {', '.join(sorted(parts & _AUDIO_OUTPUT))}: {_AUDIO_HINT}")
        return "\n".join(lines)


def placement_report(engine_or_model: Any, device: Any = None) -> PlacementReport:
    """Every parameter, buffer and plain tensor attribute that is not where it is expected.

    Expected is `device`; where that is None, the engine's device, and for a model without an engine the device of most
    of its elements (of a model made under zero.Init, the one that ZeRO-3 gathers on). A parameter that ZeRO-3 does not
    know is reported wherever it is. A tensor with several names is reported once; the members of a list, tuple or dict
    of tensors are attributes. Reads no tensor's values and waits for no device.

    Not reported, for it is right or cannot be told: tensors on meta, or offloaded by DeepSpeed; what an engine with
    dont_change_device, or below ZeRO-3 a class with an `_apply` of its own, leaves where it is; of the attributes the
    0-dim ones on the CPU, which arithmetic takes, copies of a buffer called ``original_…``, what a hook computes anew
    before each forward pass (weight_norm), and those of transformers' and DeepSpeed's own classes.

    Raises:
        TypeError: it is neither an engine nor a torch.nn.Module.
    """
    import torch

    if not isinstance(engine_or_model, torch.nn.Module):
        raise TypeError(
            f"placement_report takes a DeepSpeed engine or a torch.nn.Module, not {type(engine_or_model).__name__}"
        )
    if hasattr(type(engine_or_model), "zero_optimization_partition_weights"):
        engine: Any = engine_or_model
        tensors = list(held_by(engine.module))
        zero3 = engine.zero_optimization_partition_weights()
        if device is None and not engine.dont_change_device:
            device = engine.device
    else:
        engine = None
        tensors = list(held_by(engine_or_model))
        zero3 = any(hasattr(each.tensor, "ds_id") for each in tensors)
        if device is None:
            device = _main_device(tensors)
    if device is not None:
        device = torch.empty(0, device=device).device  # "cuda" with its index
    causes = ((each, _cause(each, device, engine is not None, zero3)) for each in tensors)
    misplaced = tuple(_described(each, cause) for each, cause in causes if cause is not None)
    return PlacementReport("" if device is None else str(device), misplaced)


def move_buffers(model: torch.nn.Module, report: PlacementReport) -> tuple[PlacementReport, PlacementReport]:
    """Moves the report's buffers to its device; returns what was moved, and what is left where it was.

    A buffer stays the tensor that it is, so that whoever else holds it sees it moved.
    """
    moved: list[Misplaced] = []
    left: list[Misplaced] = []
    for each in report:
        if each.kind != "buffer":
            left.append(each)
            continue
        buffer: Any = model.get_submodule(each.module)._buffers[each.name]
        try:
            buffer.data = buffer.data.to(report.device)
            moved.append(each)
        except RuntimeError as error:  # out of memory; a kind of tensor that cannot change its device
            left.append(replace(each, why=f"could not be moved: {error}"))
    return PlacementReport(report.device, tuple(moved)), PlacementReport(report.device, tuple(left))


def _main_device(tensors: list[Held]) -> torch.device | None:
    """Where a model without an engine is expected to be."""
    elements: Counter[torch.device] = Counter()
    for each in tensors:
        if hasattr(each.tensor, "ds_id"):
            return each.tensor.device
        if each.kind != "attribute" and each.tensor.device.type != "meta":
            elements[each.tensor.device] += each.tensor.numel()
    return max(elements, key=lambda device: (elements[device], device.type != "cpu"), default=None)


def _cause(held: Held, device: torch.device | None, in_engine: bool, zero3: bool) -> _Cause | None:
    """Why a tensor is not where it is expected; None where it is."""
    tensor = held.tensor
    has_ds_id = hasattr(tensor, "ds_id")
    partitioned = has_ds_id and tensor.numel() == 0
    if tensor.device.type == "meta" or partitioned or getattr(tensor, "ds_offload", False):
        return None
    if in_engine and zero3 and held.kind == "parameter" and not has_ds_id:
        return _UNKNOWN_TO_ZERO
    if device is None or tensor.device == device:
        return None
    if held.kind == "attribute":
        return None if tensor.dim() == 0 and tensor.device.type == "cpu" else _PLAIN
    if zero3 and held.kind == "buffer" and (not in_engine or _there_at_initialize(held.module)):
        return _LEFT_BEHIND
    if not in_engine:
        return _ASTRAY
    return None if held.own_apply and not zero3 else _LATE


def _there_at_initialize(module: torch.nn.Module) -> bool:
    return "_external_params" in vars(module)  # ZeRO-3 gives it to each module that it finds


def _described(held: Held, cause: _Cause) -> Misplaced:
    tensor = held.tensor
    return Misplaced(
        held.path,
        held.name,
        held.kind,
        tuple(tensor.shape),
        str(tensor.dtype).partition(".")[2],
        str(tensor.device),
        *cause,
    )
