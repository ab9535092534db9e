"""The placement report: which of a model's tensors are not on the expected device, and why."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .tensors import TensorRef, iter_tensors

if TYPE_CHECKING:
    import torch

# modules of Qwen-Omni models that generate audio
_AUDIO_OUTPUT = {"talker", "token2wav", "code2wav"}
_AUDIO_HINT = (
    "the audio output of a Qwen-Omni model: with ms-swift, ENABLE_AUDIO_OUTPUT=0 disables it "
    "(https://github.com/modelscope/ms-swift/issues/3824)"
)


class _Cause(NamedTuple):
    why: str
    remedy: str


_UNKNOWN_TO_ZERO = _Cause(
    "no ds_id: attached after deepspeed.initialize, so ZeRO-3 neither partitions nor updates it",
    "attach it before deepspeed.initialize",
)
_LEFT_BEHIND = _Cause(
    "the engine does not move a model created under zero.Init, and zero.Init places only tensors created by tensor, "
    "empty, zeros, ones, full, arange, eye and randn without device=",
    "set DSFIX_PLACEMENT=move to move such buffers at deepspeed.initialize, or create them with device=",
)
_LATE = _Cause(
    "attached, replaced or moved after deepspeed.initialize",
    "call module.to(engine.device) after attaching it",
)
_PLAIN = _Cause(
    "a plain attribute: neither .to() nor the engine moves it. This is fine only if forward() moves it",
    "use register_buffer(name, tensor, persistent=False)",
)
_NOT_MOVED = _Cause("it was never moved there, or was moved away", "call model.to(device)")


@dataclass(frozen=True)
class Misplaced:
    """A tensor that is not on the expected device.

    module: the path of its module, "" for the model itself; name: its name there, ``scale`` or, in a container,
    ``scales[0]``; kind: "parameter", "buffer" or "attribute" (a plain tensor attribute); dtype, device: "float32",
    "cpu"; why, remedy: short texts.
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
    """The result of `placement_report`: false if no tensor is misplaced; as a string, the whole list.

    device: the expected device, as torch writes it; "" if none is expected.
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
        """The report, naming at most `limit` tensors."""
        if not self.misplaced:
            return f"all tensors are on {self.device}" if self.device else "no device is expected"
        lines = [f"{len(self)} tensor{'s are' if len(self) > 1 else ' is'} not on the expected device ({self.device}):"]
        groups: dict[_Cause, list[Misplaced]] = {}
        for each in self.misplaced:
            groups.setdefault(_Cause(each.why, each.remedy), []).append(each)
        for cause, group in groups.items():
            shown, limit = group[:limit], max(limit - len(group), 0)
            lines += [f"  {each}" for each in shown]
            if len(shown) < len(group):
                lines.append(
                    f"  and {len(group) - len(shown)} more; print(dsfix.placement_report(engine)) lists them all"
                )
            lines += [f"    why: {cause.why}", f"    remedy: {cause.remedy}"]
        parts = {part for each in self.misplaced for part in each.module.split(".")}
        if parts & _AUDIO_OUTPUT:
            lines.append(f"  {', '.join(sorted(parts & _AUDIO_OUTPUT))}: {_AUDIO_HINT}")
        return "\n".join(lines)


def placement_report(engine_or_model: Any, device: Any = None) -> PlacementReport:
    """Lists every parameter, buffer and plain tensor attribute that is not on the expected device.

    The expected device is `device`; if that is None, the engine's device, and for a model without an engine the device
    of most of its elements (for a model created under zero.Init, the device on which ZeRO-3 gathers). A parameter
    unknown to ZeRO-3 is always reported. A tensor with several names is reported once; the members of a list, tuple or
    dict of tensors are attributes. Reads no tensor values and does not synchronize.

    Not reported, because it is correct or cannot be decided: tensors on meta or offloaded by DeepSpeed; what an engine
    with dont_change_device, or below ZeRO-3 a class that overrides `_apply`, leaves in place; and these attributes:
    0-dim tensors on the CPU, which arithmetic accepts, copies of a buffer named ``original_...``, tensors that a hook
    recomputes before each forward pass (weight_norm), and those of classes of transformers and DeepSpeed. Raises
    TypeError: the argument is neither an engine nor a torch.nn.Module.
    """
    import torch

    if not isinstance(engine_or_model, torch.nn.Module):
        raise TypeError(
            f"placement_report takes a DeepSpeed engine or a torch.nn.Module, not {type(engine_or_model).__name__}"
        )
    if hasattr(type(engine_or_model), "zero_optimization_partition_weights"):
        engine: Any = engine_or_model
        tensors = list(iter_tensors(engine.module))
        zero3 = engine.zero_optimization_partition_weights()
        if device is None and not engine.dont_change_device:
            device = engine.device
    else:
        engine = None
        tensors = list(iter_tensors(engine_or_model))
        zero3 = any(hasattr(tensor.tensor, "ds_id") for tensor in tensors)
        if device is None:
            device = _main_device(tensors)
    if device is not None:
        device = torch.empty(0, device=device).device  # "cuda" with its index
    causes = ((tensor, _cause(tensor, device, engine is not None, zero3)) for tensor in tensors)
    misplaced = tuple(_described(each, cause) for each, cause in causes if cause is not None)
    return PlacementReport("" if device is None else str(device), misplaced)


def move_buffers(model: torch.nn.Module, report: PlacementReport) -> tuple[PlacementReport, PlacementReport]:
    """Moves the buffers in the report to its device; returns what was moved, and the rest.

    A buffer stays the same tensor, so other references to it see the move.
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
        except RuntimeError as error:  # out of memory, or a tensor subclass that cannot change its device
            left.append(replace(each, why=f"could not be moved: {error}"))
    return PlacementReport(report.device, tuple(moved)), PlacementReport(report.device, tuple(left))


def _main_device(tensors: list[TensorRef]) -> torch.device | None:
    """The expected device of a model without an engine."""
    elements: Counter[torch.device] = Counter()
    for tensor in tensors:
        if hasattr(tensor.tensor, "ds_id"):
            return tensor.tensor.device
        if tensor.kind != "attribute" and tensor.tensor.device.type != "meta":
            elements[tensor.tensor.device] += tensor.tensor.numel()
    return max(elements, key=lambda device: (elements[device], device.type != "cpu"), default=None)


def _cause(held: TensorRef, device: torch.device | None, in_engine: bool, zero3: bool) -> _Cause | None:
    """Why a tensor is not on the expected device; None if it is."""
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
    at_initialize = "_external_params" in vars(held.module)  # ZeRO-3 sets it on each module that it finds
    if zero3 and held.kind == "buffer" and (not in_engine or at_initialize):
        return _LEFT_BEHIND
    if not in_engine:
        return _NOT_MOVED
    return None if held.own_apply and not zero3 else _LATE


def _described(held: TensorRef, cause: _Cause) -> Misplaced:
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
