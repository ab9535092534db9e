"""A learning rate that is a tensor: LRRangeTest, OneCycle, WarmupLR and WarmupDecayLR turn it into a number.

Why: a script makes its learning rate a tensor so that a captured CUDA graph reads it at each replay and a compiled
    optimizer is not recompiled for each rate. Through 0.15.2 each of DeepSpeed's schedules puts a number into the
    parameter group in each step, OneCycle also when it is created: a captured graph, and a script that kept the tensor,
    keep the rate of the first step. Nothing fails. WarmupCosineLR: tensor_learning_rate_made_number_cosine. Later
    releases: tensor_learning_rate_replaced.
How: as in upstream's fix, the new rate is written into the tensor. Rates that are numbers are set as before. A tensor
    shared by groups with different rates is replaced once, by one for each group; an integer tensor is replaced, too.
Changes: jobs with such a tensor and one of these schedules: what holds the tensor sees the schedule's rates, with the
    tensor's precision. What `engine.get_lr` and `get_last_lr` return stays. A checkpoint written without the patch
    holds numbers: a job that resumes from it has the schedule's rates, as numbers.
Workaround: Scripts copy the rate into their tensor after each step, and put the tensor back into the group.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity

from .._shared import apart, copied, put_back

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULES = "deepspeed.runtime.lr_schedules"
_RANGE_TEST = f"{_SCHEDULES}:LRRangeTest"
_ONE_CYCLE = f"{_SCHEDULES}:OneCycle"
_WARMUP = f"{_SCHEDULES}:WarmupLR"
_FIRST = "for lr, group in zip(self.min_lrs, optimizer.param_groups):\n    group['lr'] = lr"
_EACH = "for param_group, lr in zip(self.optimizer.param_groups, self.get_lr()):\n    param_group['lr'] = lr"
_LAST = "self._last_lr = [group['lr'] for group in self.optimizer.param_groups]"


def _around(function: str, statement: str, groups: str, last: str = "") -> tuple[Edit, Edit]:
    return (
        Edit(function, before=statement, code=f"held = [group.get('lr') for group in {groups}]"),
        Edit(
            function,
            after=last or statement,
            code=f"put_back({groups}, held)",
            uses=(put_back,),
            effect=RAN,  # who else holds the tensor cannot be seen
            when="any(hasattr(each, 'is_floating_point') and each.is_floating_point() for each in held)",
        ),
    )


PATCH = Patch(
    title="DeepSpeed's schedules turn a tensor learning rate into a float: CUDA graphs keep using the old rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.3"},
    changes=(
        Edit(
            f"{_RANGE_TEST}.__init__",
            after="self.staircase = lr_range_test_staircase",
            code="self.min_lr = copied(self.min_lr)",
            uses=(copied,),
        ),
        *_around(f"{_RANGE_TEST}.__init__", "self._update_optimizer(self.min_lr)", "self.optimizer.param_groups"),
        *_around(
            f"{_RANGE_TEST}.step", "self._update_optimizer(self.get_lr())", "self.optimizer.param_groups", last=_LAST
        ),
        Edit(
            f"{_ONE_CYCLE}._initialize_lr",
            after="self.min_lrs = [cycle_min_lr] * len(optimizer.param_groups)",
            code="self.min_lrs = copied(self.min_lrs)\ncycle_max_lr = copied([cycle_max_lr])[0]",
            uses=(copied,),
        ),
        *_around(f"{_ONE_CYCLE}._initialize_lr", _FIRST, "optimizer.param_groups"),
        *_around(f"{_ONE_CYCLE}.step", _EACH, "self.optimizer.param_groups", last=_LAST),
        Edit(
            f"{_WARMUP}.__init__",
            after="self.delta_lrs = [big - small for big, small in zip(self.max_lrs, self.min_lrs)]",
            code="self.min_lrs = copied(self.min_lrs)",
            uses=(copied,),
        ),
        *_around(f"{_WARMUP}.step", _EACH, "self.optimizer.param_groups", last=_LAST),
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.get_lr",
            replace="return self._get_optimizer_param('lr')",
            code="return apart(self._get_optimizer_param('lr'), self.lr_scheduler)",
            uses=(apart,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8202": "fixed in 0.19.4, but for OneCycle's first rate",
        "https://github.com/deepspeedai/DeepSpeed/pull/8205": "fixed in 0.19.4",
    },
    continued_by="tensor_learning_rate_replaced",
)


def reproduce(lab: Lab) -> str:
    from ._tensor_rates import train

    if hasattr(lab.deepspeed.runtime.lr_schedules, "update_lr"):
        raise CannotTell("since 0.15.3 one function sets the rates of all schedules: tensor_learning_rate_replaced")
    return train(lab, ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR"))
