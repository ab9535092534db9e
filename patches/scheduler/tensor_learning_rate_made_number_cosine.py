"""A learning rate that is a tensor: WarmupCosineLR replaces it with another tensor.

Why: a script makes its learning rate a tensor so that a captured CUDA graph reads it at each replay and a compiled
    optimizer is not recompiled for each rate. Through 0.15.2 WarmupCosineLR multiplies it in each step and puts the
    product, another tensor, into the parameter group: a captured graph, and a script that kept the tensor, keep the
    rate of the first step. Nothing fails. The other schedules: tensor_learning_rate_made_number. Later releases:
    tensor_learning_rate_replaced.
How: as in upstream's fix, the new rate is written into the tensor, and the schedule keeps a copy of the rates that it
    starts from. Rates that are numbers are set as before. A tensor shared by groups with different rates is replaced
    once, by one for each group; an integer tensor is replaced, too.
Changes: jobs with such a tensor and WarmupCosineLR: what holds the tensor sees the schedule's rates, with the tensor's
    precision. What `engine.get_lr` (with tensor_learning_rate_made_number) and `get_last_lr` return stays. A checkpoint
    written without the patch continues with the schedule's rates.
Workaround: Scripts copy the rate into their tensor after each step, and put the tensor back into the group.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity

from .._shared import copied, put_back

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULE = "deepspeed.runtime.lr_schedules:WarmupCosineLR"


PATCH = Patch(
    title="WarmupCosineLR replaces a tensor learning rate: CUDA graphs keep using the old rate",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.3,<0.15.3"},
    changes=(
        Edit(
            f"{_SCHEDULE}.__init__",
            after="self.org_lrs = [group['lr'] for group in self.optimizer.param_groups]",
            code="self.org_lrs = copied(self.org_lrs)",
            uses=(copied,),
        ),
        Edit(
            f"{_SCHEDULE}.step",
            before="for param_group, lr in zip(self.optimizer.param_groups, lrs):\n    param_group['lr'] = lr",
            code="held = [group.get('lr') for group in self.optimizer.param_groups]",
        ),
        Edit(
            f"{_SCHEDULE}.step",
            after="self._last_lr = [group['lr'] for group in self.optimizer.param_groups]",
            code="put_back(self.optimizer.param_groups, held)",
            uses=(put_back,),
            effect=RAN,  # who else holds the tensor cannot be seen
            when="any(hasattr(each, 'is_floating_point') and each.is_floating_point() for each in held)",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8202": "fixed in 0.19.4"},
    continued_by="tensor_learning_rate_replaced",
)


def reproduce(lab: Lab) -> str:
    from ._tensor_rates import train

    schedules = lab.deepspeed.runtime.lr_schedules
    if not hasattr(schedules, "WarmupCosineLR"):
        raise CannotTell("before 0.12.3 there is no WarmupCosineLR")
    if hasattr(schedules, "update_lr"):
        raise CannotTell("since 0.15.3 one function sets the rates of all schedules: tensor_learning_rate_replaced")
    return train(lab, ("WarmupCosineLR",))
