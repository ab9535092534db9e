"""A learning rate that is a tensor: DeepSpeed's schedules replace it, and what holds the tensor keeps the old rate.

Why: a script makes its learning rate a tensor so that a captured CUDA graph reads it at each replay, and a compiled
    optimizer is not compiled again for each rate. PyTorch's schedules write into this tensor. DeepSpeed's put another
    one, of one dimension and float32, into the parameter group in each step (through 0.18.0 a number; OneCycle a number
    when it is created, so that the tensor is lost for good): a captured graph, and a script that kept the tensor, go
    on with the rate of the first step. Nothing shows it.
How: as upstream's fix, the new rate is written into the tensor. WarmupCosineLR keeps a copy of the rates that it starts
    from. Rates that are numbers are set as before. So is a tensor that groups with different rates have in common: each
    gets one of its own, once; and a tensor of integers.
Changes: jobs with such a tensor and a schedule of DeepSpeed's: what holds the tensor sees the schedule's rates; a rate
    has the tensor's own precision and shape. What `engine.get_lr` and `get_last_lr` return stays but for that, and for
    OneCycle, whose rates stay tensors. A checkpoint written without the patch continues with the schedule's rates; one
    of 0.15.3 to 0.18.0 holds numbers, which they then are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULES = "deepspeed.runtime.lr_schedules"
_UPDATE = f"{_SCHEDULES}:update_lr"
_ONE_CYCLE = f"{_SCHEDULES}:OneCycle._initialize_lr"
_FIRST = "for lr, group in zip(self.min_lrs, optimizer.param_groups):\n    group['lr'] = lr"


def put_back(groups: Sequence[Any], held: Sequence[Any], rates: Sequence[Any]) -> list[Any]:
    """Writes the new rates into the tensors that the groups held, and gives these back; returns what the groups had."""
    import torch

    given = [group["lr"] for group in groups]
    values: list[Any] = [float(new) if torch.is_tensor(rate) else None for rate, new in zip(held, rates)]
    for group, rate, value in zip(groups, held, values):
        if torch.is_tensor(rate) and rate.is_floating_point():
            if len({other for each, other in zip(held, values) if each is rate}) > 1:
                group["lr"] = torch.full_like(rate, value)
            else:
                group["lr"] = rate
                rate.detach().fill_(value)
        elif torch.is_tensor(group["lr"]):
            group["lr"] = group["lr"].clone()  # the next rates are written into it, and the schedule may keep its own
    return given


def copied(rates: Sequence[Any]) -> list[Any]:
    """The rates that a schedule goes by: a group's tensor, into which others are written, may be among them."""
    import torch

    return [rate.detach().clone() if torch.is_tensor(rate) else rate for rate in rates]


def apart(rates: Sequence[Any], schedule: Any) -> list[Any]:
    """The rates as the engine gives them: not the tensors that are written into, and numbers if the schedule's are."""
    import torch

    if all(each.__module__ != _SCHEDULES for each in type(schedule).__mro__):
        return list(rates)
    numbers = not any(torch.is_tensor(rate) for rate in getattr(schedule, "_last_lr", ()))
    return [(rate.item() if numbers else rate.clone()) if torch.is_tensor(rate) else rate for rate in rates]


PATCH = Patch(
    title="a learning rate that is a tensor is replaced by DeepSpeed's schedules: captured graphs keep the old rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.3,<0.19.4"},
    changes=(
        Edit(
            _UPDATE,
            before="for param_group, lr in zip(param_groups, lrs):\n    ...",
            code="held = [group.get('lr') for group in param_groups]",
        ),
        Edit(
            _UPDATE,
            replace="return [group['lr'] for group in param_groups]",
            code="return put_back(param_groups, held, lrs)",
            uses=(put_back,),
        ),
        Edit(
            f"{_SCHEDULES}:LRRangeTest.__init__",
            after="self.staircase = lr_range_test_staircase",
            code="self.min_lr = copied(self.min_lr)",
            uses=(copied,),
        ),
        Edit(
            f"{_SCHEDULES}:WarmupLR.__init__",
            after="self.delta_lrs = [big - small for big, small in zip(self.max_lrs, self.min_lrs)]",
            code="self.min_lrs = copied(self.min_lrs)",
            uses=(copied,),
        ),
        Edit(
            _ONE_CYCLE,
            after="self.min_lrs = [cycle_min_lr] * len(optimizer.param_groups)",
            code="self.min_lrs = copied(self.min_lrs)\ncycle_max_lr = copied([cycle_max_lr])[0]",
            uses=(copied,),
        ),
        Edit(
            _ONE_CYCLE,
            before=_FIRST,
            code="held = [group.get('lr') for group in optimizer.param_groups]",
        ),
        Edit(
            _ONE_CYCLE,
            after=_FIRST,
            code="put_back(optimizer.param_groups, held, self.min_lrs)",
            uses=(put_back,),
        ),
        Edit(
            f"{_SCHEDULES}:WarmupCosineLR.__init__",
            before="if last_batch_iteration == -1:\n"
            "    self._last_lr = update_lr(self.optimizer.param_groups, self.get_lr())",
            code="self.org_lrs = copied(self.org_lrs)",
            uses=(copied,),
        ),
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.get_lr",
            replace="return self._get_optimizer_param('lr')",
            code="return apart(self._get_optimizer_param('lr'), self.lr_scheduler)",
            uses=(apart,),
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8202": "fixed in 0.19.4, but for OneCycle's first rate",
        "https://github.com/deepspeedai/DeepSpeed/pull/8205": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(Source(_ONE_CYCLE, "update_lr(optimizer.param_groups, self.min_lrs)"),),
)


def reproduce(lab: Lab) -> str:
    from dsfix.lab.tensor_rates import RATES, train

    if not hasattr(lab.deepspeed.runtime.lr_schedules, "update_lr"):
        raise CannotTell("before 0.15.3 each schedule sets the rates itself, and makes a tensor a number")
    return train(lab, RATES)
