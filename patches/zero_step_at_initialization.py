"""ZeRO-1 to 3, and bf16: the optimizer makes a step before the training.

Why: the optimizers of ZeRO and of bf16 training allocate the optimizer's state by a step with gradients of zero. It
    counts: AdamW and SGD with weight decay decay each weight once more, Adam with L2 regularization moves it by about
    the learning rate, and Adam is one step ahead in its bias correction: the first real update is 0.74 of what it
    should be (betas 0.9 and 0.999). Nothing shows it.
How: during that step learning rate and weight decay are zero; then steps are counted from zero again. Of torch's
    optimizers ASGD and Rprop begin from the learning rate and keep it, without ASGD's decay; what NAdam multiplies and
    ASGD averages begins anew. Upstream leaves the step out, and for that links the state to the parameters later. Not
    cured: SGD with `dampening`, which damps its first real step as well.
Changes: all jobs with ZeRO or bf16 and an optimizer with weight decay, or Adam of any kind: the training begins with
    the model's own weights, and with Adam its first updates are larger. A job that resumes from a checkpoint written
    without the patch goes on as it would have: its weights were decayed once too often, and Adam's steps count one
    more.
Upstream: fixed by https://github.com/deepspeedai/DeepSpeed/pull/5104 (0.13.2). fp16 without ZeRO:
    fp16_step_at_initialization.
Retire: when DeepSpeed 0.13.1 is no longer supported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ZERO = "deepspeed.runtime.zero"
_BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"


def allocate(zero: Any, step: Callable[..., Any], *args: Any) -> None:
    """Makes the step that allocates the optimizer's state, and takes back all else that it does."""
    # ZeRO-3 has a second optimizer where it offloads in part
    optimizers = [zero.optimizer, *filter(None, [getattr(zero, "backup_optimizer", None)])]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    for group in groups:
        # ASGD, Rprop: their state begins from the learning rate, and a gradient of zero moves nothing
        begins_from_lr = "lambd" in group or "step_sizes" in group
        idle = ("lambd", "weight_decay") if begins_from_lr else ("lr", "weight_decay")
        group.update({name: 0.0 for name in idle if group.get(name) is not None})
    try:
        step(*args)
    finally:
        for group, before in zip(groups, options):
            group.update(before)
    states = [state for each in optimizers for state in getattr(each, "state", {}).values() if isinstance(state, dict)]
    for state in states:
        for name, value in (("mu_product", 1.0), ("ax", 0.0)):  # NAdam, ASGD
            if hasattr(state.get(name), "fill_"):
                state[name].fill_(value)
    # DeepSpeed's and torch's optimizers count with the state, apex's with the group
    for counter in (*states, *groups):
        if hasattr(counter.get("step"), "zero_"):
            counter["step"].zero_()
        elif "step" in counter:
            counter["step"] = 0


PATCH = Patch(
    title="ZeRO-1 to 3, and bf16: the optimizer makes a step before the training",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0,<0.13.2"},
    changes=(
        *(
            Edit(
                f"{optimizer}.initialize_optimizer_states",
                replace="self.optimizer.step()",
                code=f"from {__name__} import allocate\nallocate(self, self.optimizer.step)",
            )
            for optimizer in (f"{_ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer", _BF16)
        ),
        Edit(
            f"{_ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3.initialize_optimizer_states",
            replace="self._optimizer_step(i)",
            code=f"from {__name__} import allocate\nallocate(self, self._optimizer_step, i)",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/5104",),
    fixed_in="0.13.2",
    fixed=(Source(f"{_BF16}.step", "self._lazy_init_hp_params_optimizer_state()"),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab import initial_step

    cases = {
        f"ZeRO-{stage}": initial_step.compare(lab, torch.float32, {"zero_optimization": {"stage": stage}})
        for stage in (1, 2, 3)
    }
    bf16 = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    try:
        cases["bf16"] = initial_step.compare(lab, torch.bfloat16, bf16)
    except NotImplementedError as error:  # what newer releases say to this config
        if "unsupported mix" not in str(error):
            raise
    return initial_step.report(cases)
