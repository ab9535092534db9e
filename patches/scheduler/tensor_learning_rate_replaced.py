"""A learning rate that is a tensor: DeepSpeed's schedules replace it, and CUDA graphs keep the old rate.

Why: a script makes its learning rate a tensor so that a captured CUDA graph reads it at each replay and a compiled
    optimizer is not recompiled for each rate. PyTorch's schedules write into this tensor. DeepSpeed's put a new tensor,
    of one dimension and float32, into the parameter group in each step (through 0.18.0 a number; OneCycle a number when
    it is created, so that the tensor is lost for good): a captured graph, and a script that kept the tensor, keep the
    rate of the first step. Nothing fails.
How: as in upstream's fix, the new rate is written into the tensor. WarmupCosineLR keeps a copy of the rates that it
    starts from. Rates that are numbers are set as before. A tensor shared by groups with different rates is replaced
    once, by one for each group; an integer tensor is replaced, too.
Changes: what holds the tensor sees the schedule's rates; a rate has the tensor's own precision and shape, also in what
    `engine.get_lr` and `get_last_lr` return (from OneCycle a tensor). A checkpoint written without the patch continues
    with the schedule's rates; one of 0.15.3 to 0.18.0 holds numbers, and the rates are then numbers.
Workaround: Scripts copy the rate into their tensor after each step, and put the tensor back into the group.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity, Source

from .._shared import apart, copied, put_back

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULES = "deepspeed.runtime.lr_schedules"
_UPDATE = f"{_SCHEDULES}:update_lr"
_ONE_CYCLE = f"{_SCHEDULES}:OneCycle._initialize_lr"
_EFFECT = RAN  # who else holds the tensor cannot be seen
_WHEN = "any(hasattr(each, 'is_floating_point') and each.is_floating_point() for each in held)"
_FIRST = "for lr, group in zip(self.min_lrs, optimizer.param_groups):\n    group['lr'] = lr"


PATCH = Patch(
    title="DeepSpeed's schedules replace a tensor learning rate: CUDA graphs keep using the old rate",
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
            effect=_EFFECT,
            when=_WHEN,
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
            effect=_EFFECT,
            when=_WHEN,
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8202": "fixed in 0.19.4, but for OneCycle's first rate",
        "https://github.com/deepspeedai/DeepSpeed/pull/8205": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(Source(_ONE_CYCLE, "update_lr(optimizer.param_groups, self.min_lrs)"),),
)


def reproduce(lab: Lab) -> str:
    from ._tensor_rates import RATES, train

    if not hasattr(lab.deepspeed.runtime.lr_schedules, "update_lr"):
        raise CannotTell("before 0.15.3 each schedule sets the rates itself, and makes a tensor a number")
    return train(lab, RATES)
