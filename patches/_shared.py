"""What the edits of several patches call. The fingerprints of a patch include what it imports from here."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def saved(node: Any, name: str) -> Any:
    """The number that a product or quotient saved as `name` for its backward pass, None if it is not one, or not known.

    Asking the node would call the script's hooks for saved tensors (a checkpoint, offloaded activations), some of which
    can be called only once: what they keep is not known. What was a number in Python never reaches them.
    """
    key = f"dsfix_saved_{name}"
    if key not in node.metadata:
        found: list[Any] = []

        def note(number: Any) -> Any:
            found.append(number)
            return number

        # refused if there are hooks already, or no tensor
        with contextlib.suppress(RuntimeError):
            getattr(node, f"_raw_saved_{name}").register_hooks(note, lambda number: number)
        node.metadata[key] = found[0] if found and found[0].numel() == 1 else None
    return node.metadata[key]


def put_back(groups: Sequence[Any], held: Sequence[Any], rates: Sequence[Any] | None = None) -> list[Any]:
    """Writes new learning rates into the tensors that the groups held, and gives these back to the groups.

    rates: the new ones, if they are not in the groups. Returns what the groups had.
    """
    import torch

    given = [group.get("lr") for group in groups]
    new = given if rates is None else rates
    values: list[Any] = [float(each) if torch.is_tensor(rate) else None for rate, each in zip(held, new)]
    asked = _asked(held, values)
    for group, rate, value, mine in zip(groups, held, values, given):
        if torch.is_tensor(rate) and rate.is_floating_point():
            if len(asked[id(rate)]) > 1:
                group["lr"] = torch.full_like(rate, value)
            else:
                group["lr"] = rate
                rate.detach().fill_(value)
        elif torch.is_tensor(mine):
            group["lr"] = mine.clone()  # the next rates are written into it, and the schedule may keep its own
    return given


def _asked(held: Sequence[Any], values: Sequence[Any]) -> dict[int, set[Any]]:
    """The values that are to be written into each tensor that groups hold, by its id."""
    found: dict[int, set[Any]] = {}
    for rate, value in zip(held, values):
        found.setdefault(id(rate), set()).add(value)
    return found


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


def set_rates(groups: Sequence[Any], rates: Sequence[Any]) -> None:
    """Sets the groups' rates; writes into tensors, for what holds them, unless groups with other rates share one."""
    import torch

    held = [group.get("lr") for group in groups]
    values = [float(new) for new in rates]
    asked = _asked(held, values)
    for group, rate, new, value in zip(groups, held, rates, values):
        alone = len(asked[id(rate)]) == 1
        if torch.is_tensor(rate) and rate.is_floating_point() and alone:
            rate.detach().fill_(value)
        else:  # a copy, because the schedule keeps its own
            group["lr"] = new.clone() if torch.is_tensor(new) else new


class First(NamedTuple):
    """A rate that a schedule has set before its first step, and what the group had."""

    schedule: weakref.ref[Any]
    rate: Any
    value: float | None  # of a tensor, which others write into
    own: Any


class Begun(NamedTuple):
    """rates: before the schedule's first step. own: what the groups had."""

    rates: list[Any]
    own: list[Any]


_first: dict[int, First] = {}  # by the identity of the rate, which a copy of the optimizer has, too
_begun: weakref.WeakKeyDictionary[Any, Begun] = weakref.WeakKeyDictionary()  # by the schedule
_of_engines: weakref.WeakSet[Any] = weakref.WeakSet()  # schedules that an engine steps


def set_first_rates(schedule: Any, rates: Sequence[Any]) -> list[Any]:
    """Sets the rates before a schedule's first step; `give_back` undoes it where this step is never made."""
    import torch

    groups = schedule.optimizer.param_groups
    if schedule not in _begun:
        optimizer = getattr(schedule.optimizer, "_dsfix_optimizer", schedule.optimizer)
        weakref.finalize(schedule, _gone, weakref.ref(optimizer)).atexit = False
        _begun[schedule] = Begun([], copied([group["lr"] for group in groups]))
    begun = _begun[schedule]
    begun.rates[:] = [rate * 1.0 for rate in rates]  # objects of their own, by which they are known
    set_rates(groups, begun.rates)
    for group, own in zip(groups, begun.own):
        rate = group["lr"]
        _first[id(rate)] = First(weakref.ref(schedule), rate, float(rate) if torch.is_tensor(rate) else None, own)
    return [group["lr"] for group in groups]


def first_rates(schedule: Any, rates: Sequence[Any]) -> list[Any]:
    """The rates that were set before a schedule's first step; those given if none were."""
    return list(_begun[schedule].rates if schedule in _begun else rates)


def first_step_had_first_rates(schedule: Any, unlike_release_from: int = 0) -> bool:
    """Whether an engine's first step had first rates of `schedule` instead of the optimizer's own: only tells.

    unlike_release_from: the first group whose first rate the release does not set.
    """
    begun = _begun.get(schedule)
    if begun is None or schedule not in _of_engines:
        return False
    rates = list(zip(schedule.optimizer.param_groups, begun.rates, begun.own))
    return any(
        group.get("lr") is rate and isinstance(own, (int, float)) and own != rate
        for group, rate, own in rates[unlike_release_from:]
    )


def give_back(optimizer: Any, of: Callable[[Any], bool] = lambda _: True) -> None:
    """Gives the groups what they had before a schedule set rates that nothing has replaced since.

    of: schedule, None if it is gone -> whether its rates are meant.
    """
    for group in optimizer.param_groups:
        first = _first.get(id(group.get("lr")))
        if first is None or (first.value is not None and float(first.rate) != first.value):
            continue
        if of(first.schedule()):
            set_rates([group], [first.own])


def _gone(of: weakref.ref[Any]) -> None:
    optimizer = of()
    if optimizer is not None:
        give_back(optimizer, lambda schedule: schedule is None)


def engine_begins(engine: Any, optimizer: Any) -> None:
    """The schedule of an engine before this one is over, unless this one goes on with it."""
    goes_on = engine.client_lr_scheduler
    give_back(optimizer, lambda it: it is None or (it in _of_engines and it is not goes_on))


def engine_has(schedule: Any) -> None:
    if schedule is not None:
        _of_engines.add(schedule)


def engine_ends(engine: Any) -> None:
    if hasattr(engine, "basic_optimizer"):
        give_back(engine.basic_optimizer, lambda schedule: schedule is engine.lr_scheduler)


def correct_later_schedules(schedule: Any) -> None:
    """Schedules of PyTorch that took a first rate for the group's own, because they were made after it was set."""
    groups = schedule.optimizer.param_groups
    if not any(id(group.get("initial_lr")) in _first for group in groups):
        return
    holders = gc.get_referrers(getattr(schedule.optimizer, "_dsfix_optimizer", schedule.optimizer))
    for holder in holders:
        rates = (holder if type(holder) is dict else getattr(holder, "__dict__", {})).get("base_lrs")
        if isinstance(rates, list):
            rates[:] = [_first[id(rate)].own if id(rate) in _first else rate for rate in rates]
    for group in groups:
        if id(group.get("initial_lr")) in _first:
            group["initial_lr"] = _first[id(group["initial_lr"])].own


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


class Discards:
    """What a script did to `.grad` since ZeRO moved the gradients elsewhere: ids of parameters."""

    def __init__(self) -> None:
        self.certain: set[int] = set()
        self.doubtful: set[int] = set()


class _Watch(NamedTuple):
    optimizer: weakref.ref[Any]
    discards: Discards


_watched: dict[int, _Watch] = {}
_lock = threading.RLock()
_replaced: list[Any] = []  # what `torch.nn.Parameter` itself had as `grad`, while something is watched


def watch(optimizer: Any) -> None:
    """From now on, record which gradients a script discards. DeepSpeed has set each `.grad` to None: no value tells."""
    import torch

    number = id(optimizer)
    with _lock:
        if number in _watched:
            return
        _watched[number] = _Watch(weakref.ref(optimizer, lambda _: _end(number)), Discards())
        if not _replaced:
            parameter = torch.nn.Parameter
            _replaced.append(own(parameter, "grad"))
            parameter.grad = _Gradient(parameter.grad)  # type: ignore[assignment,arg-type,unused-ignore]
        _watch_zero_grad(optimizer)


def used_again(optimizer: Any, parameter: Any) -> None:
    """Forget what was recorded of this parameter."""
    watched = _watched.get(id(optimizer))
    if watched is not None:
        watched.discards.certain.discard(id(parameter))
        watched.discards.doubtful.discard(id(parameter))


def unwatch(optimizer: Any) -> Discards:
    """End that, and return what was recorded."""
    if id(optimizer) not in _watched:
        return Discards()
    inner = vars(optimizer.optimizer)
    if isinstance(inner.get("zero_grad"), _ZeroGrad):
        del inner["zero_grad"]
    return _end(id(optimizer))


def _end(number: int) -> Discards:
    import torch

    with _lock:
        watched = _watched.pop(number, None)
        parameter = torch.nn.Parameter
        if watched and not _watched and isinstance(own(parameter, "grad"), _Gradient):
            found = _replaced.pop()
            if found is None:
                del parameter.grad
            else:
                parameter.grad = found
    return watched.discards if watched else Discards()


def _watch_zero_grad(optimizer: Any) -> None:
    """The script's own optimizer has no parameters of the model in ZeRO: that its `zero_grad` is called, is seen."""
    inner = vars(optimizer.optimizer)
    if "zero_grad" not in inner:
        inner["zero_grad"] = _ZeroGrad(optimizer)


class _ZeroGrad:
    """`zero_grad` of an optimizer that ZeRO wraps."""

    def __init__(self, optimizer: Any) -> None:
        self.outer, self.inner = weakref.ref(optimizer), weakref.ref(optimizer.optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outer = self.outer()
        watched = _watched.get(id(outer))
        if outer is not None and watched is not None and watched.optimizer() is outer:
            groups: Any = getattr(outer, "fp16_groups", None) or getattr(outer, "bit16_groups", ())
            watched.discards.certain.update(id(each) for group in groups for each in group)
            watched.discards.doubtful.clear()
        inner: Any = self.inner()
        return type(inner).zero_grad(inner, *args, **kwargs)


class _Gradient(property):
    """`torch.nn.Parameter.grad`, which autograd does not use, with a look at who uses it while an optimizer watches."""

    def __init__(self, grad: Any) -> None:
        read, write, delete = grad.__get__, grad.__set__, grad.__delete__

        def get(parameter: Any) -> Any:
            _accessed(parameter, sys._getframe(1))
            return read(parameter)

        def set_(parameter: Any, value: Any) -> None:
            _accessed(parameter, sys._getframe(1), sets=True, kept=value is not None)
            write(parameter, value)

        def del_(parameter: Any) -> None:
            _accessed(parameter, sys._getframe(1), sets=True)
            delete(parameter)

        super().__init__(get, set_, del_)


def _accessed(parameter: Any, frame: Any, sets: bool = False, kept: bool = False) -> None:
    if frame.f_code.co_name == "zero_grad":
        caller = frame.f_back
        while caller.f_code.co_name == "wrapped_fn":  # deepspeed.utils.nvtx
            caller = caller.f_back
        if _is_of(caller, "deepspeed"):
            return
        certain = True
    elif _is_of(frame, "deepspeed", "dsfix", "torch"):
        return
    else:
        certain = sets and not kept
    number = id(parameter)
    for _, discards in list(_watched.values()):
        if certain:  # of two accesses, one is clear
            discards.certain.add(number)
            discards.doubtful.discard(number)
        elif number not in discards.certain:
            discards.doubtful.add(number)


def _is_of(frame: Any, *packages: str) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in packages


def tell_of_doubt(patch: str) -> None:
    """Once, on rank 0: gradients are discarded, as without the patch, because the script may have done so."""
    from dsfix.log import rank, warn

    if rank() == 0 and patch not in _told:
        _told.add(patch)
        warn(
            f"{patch}: between two backward passes the script read .grad or set it to a tensor, but DeepSpeed keeps no "
            "gradients there. The gradients of the first pass are lost, as without dsfix. To discard them, call "
            "engine.zero_grad(); to read them, use deepspeed.utils.safe_get_full_grad"
        )


_told: set[str] = set()


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
