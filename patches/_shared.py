"""What the edits of several patches call. The fingerprints of a patch include what it imports from here."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any


def put_back(groups: Sequence[Any], held: Sequence[Any], rates: Sequence[Any] | None = None) -> list[Any]:
    """Writes new learning rates into the tensors that the groups held, and gives these back to the groups.

    rates: the new ones, if they are not in the groups. Returns what the groups had.
    """
    import torch

    given = [group.get("lr") for group in groups]
    new = given if rates is None else rates
    values: list[Any] = [float(each) if torch.is_tensor(rate) else None for rate, each in zip(held, new)]
    for group, rate, value, mine in zip(groups, held, values, given):
        if torch.is_tensor(rate) and rate.is_floating_point():
            if len({other for each, other in zip(held, values) if each is rate}) > 1:
                group["lr"] = torch.full_like(rate, value)
            else:
                group["lr"] = rate
                rate.detach().fill_(value)
        elif torch.is_tensor(mine):
            group["lr"] = mine.clone()  # the next rates are written into it, and the schedule may keep its own
    return given


def copied(rates: Sequence[Any]) -> list[Any]:
    """The rates that a schedule goes by: a group's tensor, into which others are written, may be among them."""
    import torch

    return [rate.detach().clone() if torch.is_tensor(rate) else rate for rate in rates]


def apart(rates: Sequence[Any], schedule: Any) -> list[Any]:
    """The rates as the engine gives them: not the tensors that are written into, and numbers if the schedule's are."""
    import torch

    if all(each.__module__ != "deepspeed.runtime.lr_schedules" for each in type(schedule).__mro__):
        return list(rates)
    numbers = not any(torch.is_tensor(rate) for rate in getattr(schedule, "_last_lr", ()))
    return [(rate.item() if numbers else rate.clone()) if torch.is_tensor(rate) else rate for rate in rates]


class Kept(int):
    """Gradients that a module still waits for; inputs of a forward pass without gradients do not add to them.

    counted: what there would be without the patch.
    """

    module: weakref.ref[Any]
    counted = 0

    def __add__(self, other: int) -> Kept:
        self.counted += other
        return self

    def __sub__(self, other: int) -> int:
        import torch

        # with create_graph the parameters are needed again, by a backward pass that does not gather them
        as_before = torch.is_grad_enabled() or not _releases(self.module())
        return (self.counted if as_before else int(self)) - other

    def __reduce__(self) -> Any:  # a copy of the module has a number
        return int, (int(self),)


def kept(module: Any, awaited: int) -> int:
    """The count of a module that is about to run without gradients while it awaits some."""
    if awaited <= 0:
        return 0
    count = Kept(awaited)
    count.module = weakref.ref(module)
    return count


def _releases(module: Any) -> bool:
    """Whether all ranks release their parameters after this backward pass, whichever inputs have a gradient."""
    optimizer = getattr(next(module.parameters(), None), "_z3_optimizer", None)
    if hasattr(getattr(optimizer, "parameter_offload", None), "release_backward_leftovers"):
        return True  # since 0.19.3
    return bool(getattr(optimizer, "is_gradient_accumulation_boundary", False))


def count_in_norm(optimizer: Any, parameter: Any, gradient: Any) -> None:
    """Keep the norm of a gradient that was set, where those of the other gradients are kept."""
    another = type(optimizer).__name__ != "DeepSpeedZeroOptimizer_Stage3" or getattr(optimizer, "zenflow", False)
    if not optimizer.offload_optimizer or another:  # SuperOffload and ZenFlow step during backward
        return
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found,unused-ignore]

    norm = optimizer._constant_buffered_norm2(gradient.contiguous())
    number = optimizer.get_param_id(parameter)
    before = optimizer.norm_for_param_grads.get(number)
    device = before.device if hasattr(before, "device") else get_accelerator().current_device_name()
    optimizer.norm_for_param_grads[number] = norm.to(device)


def own(cls: type, name: str) -> Any:
    """What the class itself defines under that name; None where it inherits it."""
    return cls.__dict__.get(name)


def restore(cls: type, name: str, kept: str) -> None:
    """Give the class back what `own` found, which is kept under another name; one that has none stays as it is."""
    if kept not in cls.__dict__:
        return
    found = cls.__dict__[kept]
    if found is not None:
        setattr(cls, name, found)
    elif name in cls.__dict__:
        delattr(cls, name)


_PIECE = 1 << 24  # elements of a flat tensor that are compared at once: little memory is needed beside it


def take_weights(optimizer: Any) -> None:
    """Set the fp32 copies to the model's weights, except elements that already round to them.

    To load what is there changes nothing.
    """
    import torch

    for copy, weight in _copies(optimizer):
        pieces = ((each if each.dim() else each[None]).split(_PIECE) for each in (copy.detach(), weight.detach()))
        for own, loaded in zip(*pieces):
            loaded = loaded.to(own.device)
            own.copy_(torch.where(own.to(loaded.dtype) == loaded, own, loaded.to(own.dtype)))


def _copies(optimizer: Any) -> list[tuple[Any, Any]]:
    """The fp32 copies that an optimizer of DeepSpeed holds, each with the weights that it is a copy of."""

    from deepspeed import comm  # type: ignore[import-not-found,unused-ignore]

    def of(name: str) -> list[Any]:
        return getattr(optimizer, name, None) or []

    pairs = [*zip(of("fp32_groups_flat"), of("fp16_groups_flat"))]  # without ZeRO, flat
    for groups in zip(of("fp32_groups"), of("fp16_groups")):  # without ZeRO, parameter by parameter
        pairs += zip(*groups)
    pairs += zip(of("fp32_partitioned_groups_flat"), of("fp16_partitioned_groups_flat"))  # ZeRO-3
    for copies, parts in (
        ("fp32_groups_flat_partition", "bf16_partitioned_groups"),  # BF16_Optimizer
        ("single_partition_of_fp32_groups", "parallel_partitioned_bit16_groups"),  # ZeRO-1 and ZeRO-2
    ):
        for copy, part, group in zip(of(copies), of(parts), of("real_dp_process_group")):
            pairs.append((copy, part[comm.get_rank(group=group)]))
    return pairs
