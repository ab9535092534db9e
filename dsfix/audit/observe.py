"""Reads one rank's parameters, gradients and optimizer state from the engine without changing anything.

Nothing is gathered, because another collective could change what is observed: each rank keeps its own pieces, which are
merged afterwards (pieces.py). Gradients are read when the inner optimizer's step starts: DeepSpeed unscales and clips
them just before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from dsfix.audit.pieces import Part, Piece


@dataclass(frozen=True)
class Slice:
    """Elements [start, start + numel) of `held`, a tensor of the inner optimizer, are those of `name` from `offset`."""

    name: str
    held: torch.Tensor
    start: int
    offset: int
    numel: int
    shape: torch.Size

    def of(self, flat: torch.Tensor) -> Piece:
        """Returns these elements of a tensor with the layout of `held`, copied to the CPU."""
        elements = flat.detach().reshape(-1).narrow(0, self.start, self.numel)
        return Piece(self.name, self.offset, self.shape, elements.to("cpu", copy=True))


class Observer:
    """Observes the steps of one engine. names: parameter of the engine's module -> its name."""

    def __init__(self, engine: Any, names: Mapping[Any, str]) -> None:
        self._engine, self._names = engine, names
        self.not_compared: dict[str, str] = {}
        self._slices = self._layout()
        self._gradients: list[Piece] = []
        self._rates: list[float] = []
        self._stepped = False
        self._hook = torch_optimizer.register_optimizer_step_pre_hook(self._before)

    def close(self) -> None:
        self._hook.remove()

    def start(self) -> None:
        """To be called before the micro-batches of a step."""
        self._gradients, self._stepped = [], False
        self._rates = [float(rate) for rate in self._engine.get_lr()]

    def state(self, loss: float = 0.0) -> Part:
        """loss: of the step that has ended, the mean over this rank's micro-batches."""
        norm = self._engine.get_global_grad_norm()
        tensors = {
            "gradients": self._gradients,
            "parameters": list(self._parameters()),
            "weights": list(self._weights()),
        }
        for key, piece in self._states():
            tensors.setdefault(f"state {key}", []).append(piece)
        scale = getattr(self._engine.optimizer, "cur_scale", None)
        return Part(
            loss=loss,
            norm=None if norm is None else float(norm),
            learning_rates=self._rates,
            skipped=not self._stepped,
            scale=None if scale is None else float(scale),
            counters={name: int(getattr(self._engine, name)) for name in ("global_steps", "skipped_steps")},
            tensors=tensors,
        )

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not any(optimizer is own for own in self._optimizers()):
            return
        self._stepped = True
        for group in optimizer.param_groups:
            for held in group["params"]:
                for piece in self._slices.get(id(held), ()):
                    if held.grad is not None:
                        self._gradients.append(piece.of(held.grad.to(torch.float32)))

    def _parameters(self) -> Iterator[Piece]:
        seen = set()
        for slices in self._slices.values():
            for each in slices:
                seen.add(each.name)
                yield each.of(each.held)
        for parameter, name in self._names.items():
            # trained parameters are held by the ranks that own a part
            if name not in seen and not parameter.requires_grad:
                yield self._weight(parameter, name)

    def _weights(self) -> Iterator[Piece]:
        for parameter, name in self._names.items():
            yield self._weight(parameter, name)

    @staticmethod
    def _weight(parameter: Any, name: str) -> Piece:
        """Returns the model's weight, or this rank's partition of it."""
        if not hasattr(parameter, "ds_tensor"):
            return Piece(name, 0, parameter.shape, parameter.detach().reshape(-1).to("cpu", copy=True))
        partition = parameter.ds_tensor.detach().reshape(-1)
        rank = torch.distributed.get_rank(parameter.ds_process_group)
        offset = min(rank * partition.numel(), parameter.ds_numel)
        numel = min(partition.numel(), parameter.ds_numel - offset)
        return Piece(name, offset, parameter.ds_shape, partition.narrow(0, 0, numel).to("cpu", copy=True))

    def _states(self) -> Iterator[tuple[str, Piece]]:
        for optimizer in self._optimizers():
            fused = type(optimizer).__name__ == "FusedAdam"
            steps = {
                id(optimizer_tensor): _step(optimizer, group)
                for group in optimizer.param_groups
                for optimizer_tensor in group["params"]
            }
            for slices in self._slices.values():
                optimizer_tensor = slices[0].held
                state = optimizer.state.get(optimizer_tensor)
                if not state:
                    continue
                if (fused or "step" not in state) and steps.get(id(optimizer_tensor)) is not None:
                    state = {**state, "step": steps[id(optimizer_tensor)]}
                for key, value in state.items():
                    for each in slices:
                        if torch.is_tensor(value) and value.numel() == optimizer_tensor.numel() and key != "step":
                            yield key, each.of(value)
                        elif (torch.is_tensor(value) and value.numel() == 1) or isinstance(value, (int, float)):
                            number = torch.as_tensor(float(value)).reshape(1)
                            yield key, Piece(each.name, 0, torch.Size(()), number)

    def _optimizers(self) -> list[Any]:
        wrapper = self._engine.optimizer
        inner = getattr(wrapper, "optimizer", wrapper)
        return [each for each in (inner, getattr(wrapper, "backup_optimizer", None)) if each is not None]

    def _layout(self) -> dict[int, list[Slice]]:
        layout: dict[int, list[Slice]] = {}
        for each in self._find():
            layout.setdefault(id(each.held), []).append(each)
        return layout

    def _find(self) -> Iterator[Slice]:
        wrapper = self._engine.optimizer
        if hasattr(wrapper, "fp32_partitioned_groups_flat"):
            yield from self._stage3(wrapper)
        elif hasattr(wrapper, "single_partition_of_fp32_groups"):
            flat_partitions = wrapper.single_partition_of_fp32_groups
            offsets = getattr(wrapper, "round_robin_bit16_offsets", [None] * len(flat_partitions))
            yield from self._partitions(
                flat_partitions, wrapper.round_robin_bit16_groups, offsets, wrapper.real_dp_process_group
            )
        elif hasattr(wrapper, "fp32_groups_flat_partition"):
            flat_partitions = wrapper.fp32_groups_flat_partition
            yield from self._partitions(
                flat_partitions, wrapper.bf16_groups, [None] * len(flat_partitions), wrapper.real_dp_process_group
            )
        elif hasattr(wrapper, "fp32_groups_flat"):
            flat_partitions = wrapper.fp32_groups_flat
            yield from self._partitions(
                flat_partitions, wrapper.fp16_groups, [None] * len(flat_partitions), [None] * len(flat_partitions)
            )
        elif hasattr(wrapper, "fp32_groups"):
            for masters, group in zip(wrapper.fp32_groups, wrapper.fp16_groups):
                for flat_partitions, parameter in zip(masters, group):
                    yield self._whole(flat_partitions, self._names[parameter])
        else:
            for group in wrapper.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        yield self._whole(parameter, self._names[parameter])

    @staticmethod
    def _whole(held: torch.Tensor, name: str) -> Slice:
        return Slice(name, held, 0, 0, held.numel(), held.shape)

    def _partitions(self, flats: Any, groups: Any, offsets: Any, processes: Any) -> Iterator[Slice]:
        """ZeRO-1/2 and BF16_Optimizer: a rank holds one slice of the concatenated parameters of a group."""
        for flat, group, starts, process in zip(flats, groups, offsets, processes):
            first = 0 if process is None else torch.distributed.get_rank(process) * flat.numel()
            start = 0
            for index, parameter in enumerate(group):
                start = starts[index] if starts else start
                low, high = max(start, first), min(start + parameter.numel(), first + flat.numel())
                if low < high:
                    name = self._names[parameter]
                    yield Slice(name, flat, low - first, low - start, high - low, parameter.shape)
                start += parameter.numel()

    def _stage3(self, wrapper: Any) -> Iterator[Slice]:
        """ZeRO-3: a rank holds, per sub-group, its partition of each parameter, the last one padded."""
        for flat, group in zip(wrapper.fp32_partitioned_groups_flat, wrapper.fp16_groups):
            start = 0
            for parameter in group:
                size = parameter.ds_tensor.ds_numel
                offset = torch.distributed.get_rank(parameter.ds_process_group) * size
                numel = min(size, parameter.ds_numel - offset)
                if numel > 0:
                    yield Slice(self._names[parameter], flat, start, offset, numel, parameter.ds_shape)
                start += size


def _step(optimizer: Any, group: Mapping[str, Any]) -> Any:
    """Returns the step count of a group: FusedAdam has it in the state of its last parameter only, or in the group."""
    counted = [optimizer.state[held].get("step") for held in group["params"] if held in optimizer.state]
    return max([each for each in counted if each is not None], default=group.get("step"))
