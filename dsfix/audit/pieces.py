"""What is recorded of a training for the comparison, and the pieces of tensors of which the ranks' records are merged.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class Step:
    """One optimizer step; tensors are on the CPU, whole (not partitioned) and keyed by the model's names.

    loss: mean over the global batch. norm: of the global gradient before clipping, as DeepSpeed reports it, or None.
    gradients: as passed to the optimizer: unscaled, averaged and clipped. learning_rates: of this step, by parameter
    group. parameters: after the step; the optimizer's fp32 weights, if it has any. state: of the optimizer after the
    step: parameter -> "exp_avg" etc. skipped: no step because of inf or nan. weights: the model's, after the step, in
    its dtype. scale: the loss scale after the step, or None. counters: the engine's global_steps and skipped_steps
    after the step. torn: "gradients", "norm" etc. on which the ranks disagree -> the names. An element that no rank
    holds is nan.
    """

    loss: float
    norm: float | None
    gradients: dict[str, torch.Tensor]
    learning_rates: list[float]
    parameters: dict[str, torch.Tensor]
    state: dict[str, dict[str, torch.Tensor]]
    skipped: bool = False
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    scale: float | None = None
    torn: dict[str, list[str]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class Record:
    """One training and the trainings that continued from its checkpoints.

    start: the state before the first step; its loss, norm and gradients are meaningless. steps: the uninterrupted
    training. loaded: phase ("resume", "universal") -> the state after the load; resumed: -> the steps after it.
    exports: phase ("zero_to_fp32", "16bit") -> the parameters exported after half of the steps. not_compared: what this
    DeepSpeed does not expose -> why. errors: phase, or "training" -> the traceback that ended it.
    """

    start: Step | None = None
    steps: list[Step] = field(default_factory=list)
    loaded: dict[str, Step] = field(default_factory=dict)
    resumed: dict[str, list[Step]] = field(default_factory=dict)
    exports: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """values: one-dimensional, the elements from `offset` of the flattened tensor `name` of this `shape`."""

    name: str
    offset: int
    shape: torch.Size
    values: torch.Tensor


@dataclass
class Part:
    """One rank's part of a step; tensors: "gradients", "parameters", "weights", "state exp_avg" etc. -> its pieces."""

    loss: float
    norm: float | None
    learning_rates: list[float]
    skipped: bool
    scale: float | None
    tensors: Mapping[str, list[Piece]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


def join(parts: Sequence[Part]) -> Step:
    first = parts[0]
    torn: dict[str, list[str]] = {}
    whole: dict[str, dict[str, torch.Tensor]] = {}
    for kind in sorted({kind for part in parts for kind in part.tensors}):
        pieces = [piece for part in parts for piece in part.tensors.get(kind, [])]
        whole[kind], split = _merge(pieces)
        if split:
            torn[kind] = split
    for kind in ("norm", "skipped", "scale", "counters", "learning_rates"):
        if any(repr(getattr(part, kind)) != repr(getattr(first, kind)) for part in parts):
            torn[kind] = []
    state: dict[str, dict[str, torch.Tensor]] = {}
    for kind, tensors in whole.items():
        if kind.startswith("state "):
            for name, tensor in tensors.items():
                state.setdefault(name, {})[kind.partition(" ")[2]] = tensor
    return Step(
        loss=sum(part.loss for part in parts) / len(parts),
        norm=first.norm,
        gradients=whole.get("gradients", {}),
        learning_rates=first.learning_rates,
        parameters=whole.get("parameters", {}),
        state=state,
        skipped=first.skipped,
        weights=whole.get("weights", {}),
        scale=first.scale,
        counters=first.counters,
        torn=torn,
    )


def _merge(pieces: Sequence[Piece]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Returns the whole tensors, nan where no rank holds an element, and the names on which ranks disagree."""
    whole: dict[str, torch.Tensor] = {}
    pieces_by_name: dict[str, torch.Tensor] = {}
    torn = []
    for piece in pieces:
        if piece.name not in whole:
            numel = piece.shape.numel()
            whole[piece.name] = torch.full((numel,), float("nan"), dtype=piece.values.dtype)
            pieces_by_name[piece.name] = torch.zeros(numel, dtype=torch.bool)
        place = slice(piece.offset, piece.offset + len(piece.values))
        before, seen = whole[piece.name][place], pieces_by_name[piece.name][place]
        if not torch.equal(before[seen].nan_to_num(), piece.values[seen].nan_to_num()):
            torn.append(piece.name)
        before.copy_(piece.values)
        seen.fill_(True)
    shapes = {piece.name: piece.shape for piece in pieces}
    return {name: tensor.view(shapes[name]) for name, tensor in whole.items()}, sorted(set(torn))
