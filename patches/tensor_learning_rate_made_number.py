"""A learning rate that is a tensor: LRRangeTest, OneCycle, WarmupLR and WarmupDecayLR make it a number.

Why: a script makes its learning rate a tensor so that a captured CUDA graph reads it at each replay, and a compiled
    optimizer is not compiled again for each rate. Through 0.15.2 each of DeepSpeed's schedules puts a number into the
    parameter group in each step, OneCycle also when it is created: a captured graph, and a script that kept the tensor,
    go on with the rate of the first step. Nothing shows it. WarmupCosineLR: tensor_learning_rate_made_number_cosine.
    Later releases: tensor_learning_rate_replaced.
How: as upstream's fix, the new rate is written into the tensor. Rates that are numbers are set as before. So is a
    tensor that groups with different rates have in common: each gets one of its own, once; and a tensor of integers.
Changes: jobs with such a tensor and one of these schedules: what holds the tensor sees the schedule's rates, with the
    tensor's precision. Rates returned by `get_last_lr` are then the groups' own tensors. A checkpoint written without
    the patch continues with the schedule's rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULES = "deepspeed.runtime.lr_schedules"
_RANGE_TEST = f"{_SCHEDULES}:LRRangeTest._update_optimizer"
_ONE_CYCLE = f"{_SCHEDULES}:OneCycle._initialize_lr"
_FIRST = "for lr, group in zip(self.min_lrs, optimizer.param_groups):\n    group['lr'] = lr"
_EACH = "for param_group, lr in zip(self.optimizer.param_groups, {}):\n    param_group['lr'] = lr"


def put_back(groups: Sequence[Any], held: Sequence[Any]) -> None:
    """Writes the groups' new rates into the tensors that they held, and gives these back to the groups."""
    import torch

    rates = [group["lr"] for group in groups]
    pairs = [(rate, float(new)) for rate, new in zip(held, rates) if torch.is_tensor(rate)]
    for group, rate, new in zip(groups, held, rates):
        if not torch.is_tensor(rate) or not rate.is_floating_point():
            continue
        if len({value for each, value in pairs if each is rate}) > 1:
            group["lr"] = torch.full_like(rate, float(new))
        else:
            group["lr"] = rate
            rate.detach().fill_(float(new))


def _around(function: str, statement: str, groups: str) -> tuple[Edit, Edit]:
    return (
        Edit(function, before=statement, code=f"held = [group['lr'] for group in {groups}]"),
        Edit(function, after=statement, code=f"put_back({groups}, held)", uses=(put_back,)),
    )


PATCH = Patch(
    title="DeepSpeed's schedules make a learning rate that is a tensor a number: captured graphs keep the old rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.3"},  # the bug is older, but no release before 0.12.0 has been run
    changes=(
        *_around(_RANGE_TEST, _EACH.format("group_lrs"), "self.optimizer.param_groups"),
        *_around(_ONE_CYCLE, _FIRST, "optimizer.param_groups"),
        *_around(f"{_SCHEDULES}:OneCycle.step", _EACH.format("self.get_lr()"), "self.optimizer.param_groups"),
        *_around(f"{_SCHEDULES}:WarmupLR.step", _EACH.format("self.get_lr()"), "self.optimizer.param_groups"),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8202": "fixed in 0.19.4, but for OneCycle's first rate",
        "https://github.com/deepspeedai/DeepSpeed/pull/8205": "fixed in 0.19.4",
    },
    fixed_in=None,
    continued_by="tensor_learning_rate_replaced",
)


def reproduce(lab: Lab) -> str:
    from dsfix.lab.tensor_rates import train

    if hasattr(lab.deepspeed.runtime.lr_schedules, "update_lr"):
        raise CannotTell("since 0.15.3 one function sets the rates of all schedules: tensor_learning_rate_replaced")
    return train(lab, ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR"))
