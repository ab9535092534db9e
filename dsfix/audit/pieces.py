"""The pieces of tensors that each rank holds, and how they are merged. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dsfix.audit.record import Step


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
