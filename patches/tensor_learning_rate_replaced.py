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
    has the tensor's own precision and shape. Rates returned by `get_last_lr` are then the groups' own tensors. A
    checkpoint written without the patch continues with the schedule's rates.
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


def put_back(groups: Sequence[Any], held: Sequence[Any], rates: Sequence[Any]) -> None:
    """Writes the groups' new rates into the tensors that they held, and gives these back to the groups."""
    import torch

    pairs = [(rate, float(new)) for rate, new in zip(held, rates) if torch.is_tensor(rate)]
    for group, rate, new in zip(groups, held, rates):
        if not torch.is_tensor(rate) or not rate.is_floating_point():
            continue
        if len({value for each, value in pairs if each is rate}) > 1:
            group["lr"] = torch.full_like(rate, float(new))
        else:
            group["lr"] = rate
            rate.detach().fill_(new.squeeze() if torch.is_tensor(new) else new)


def copied(rates: Sequence[Any]) -> list[Any]:
    import torch

    return [rate.detach().clone() if torch.is_tensor(rate) else rate for rate in rates]


PATCH = Patch(
    title="a learning rate that is a tensor is replaced by DeepSpeed's schedules: captured graphs keep the old rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.3,<0.19.4"},
    changes=(
        Edit(
            _UPDATE,
            before="for param_group, lr in zip(param_groups, lrs):\n    ...",
            code="held = [group['lr'] for group in param_groups]",
        ),
        Edit(
            _UPDATE,
            before="return [group['lr'] for group in param_groups]",
            code="put_back(param_groups, held, lrs)",
            uses=(put_back,),
        ),
        Edit(
            _ONE_CYCLE,
            before=_FIRST,
            code="held = [group['lr'] for group in optimizer.param_groups]",
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
