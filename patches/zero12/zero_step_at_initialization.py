"""ZeRO-1 to 3, and bf16: the optimizer takes a step before training starts.

Why: the optimizers of ZeRO and of bf16 training allocate the optimizer state by a step with zero gradients. That step
    has effects: AdamW and SGD with weight decay decay each weight once more, Adam with L2 regularization moves it by
    about the learning rate, and Adam is one step ahead in its bias correction: the first real update is 0.74 of what it
    should be (betas 0.9 and 0.999). Nothing fails.
How: during that step learning rate and weight decay are zero; afterwards the step count is reset, and so are NAdam's
    product and ASGD's average. ASGD and Rprop keep their learning rate; so does an optimizer that is neither torch's
    nor DeepSpeed's nor apex's, whose weights are restored from a copy on the host. Not fixed: SGD with `dampening`,
    which also damps its first real step.
Changes: jobs with weight decay, or Adam of any kind: training starts from the model's own weights, and Adam's first
    updates are larger. A job that resumes from a checkpoint written without the patch continues as it would have. fp16
    without ZeRO: fp16_step_at_initialization.
Workaround: None in the script; DeepSpeed 0.13.2 helps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_ZERO = "deepspeed.runtime.zero"
_BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
_KNOWN = ("torch.optim.", "deepspeed.", "apex.")  # modules of optimizers whose state is known
_EFFECT = "the step with zero gradients before training left weights and step counts unchanged"
# whether a step with zero gradients moves a weight, or counts for Adam's bias correction or Adagrad's decay
_MATTERS = """any(
    ({"betas", "eps"} <= group.keys() and group.get("bias_correction", True))
    or group.get("lr_decay")
    or (group.get("weight_decay") and isinstance(group.get("lr"), float) and group["lr"] != 0)
    for group in self.optimizer.param_groups
)"""


def allocate(zero: Any, step: Callable[..., Any], *args: Any) -> None:
    """Take the step that allocates the optimizer state, and revert its other effects."""
    # ZeRO-3 has a second optimizer for partial offload
    optimizers = [zero.optimizer, *filter(None, [getattr(zero, "backup_optimizer", None)])]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    known = type(zero.optimizer).__module__.startswith(_KNOWN)
    flat = (
        [zero.fp32_partitioned_groups_flat[args[0]]] if args else [each for group in groups for each in group["params"]]
    )
    weights = [] if known else [each.detach().to("cpu", copy=True) for each in flat]
    for group in groups:
        # ASGD, Rprop: their state starts from the learning rate, and a zero gradient moves nothing
        begins_from_lr = not known or "lambd" in group or "step_sizes" in group
        idle = ("lambd", "weight_decay") if begins_from_lr else ("lr", "weight_decay")
        group.update({name: 0.0 for name in idle if group.get(name) is not None})
    try:
        step(*args)
    finally:
        for group, before in zip(groups, options):
            group.update(before)
        for each, weight in zip(flat, weights):
            each.data.copy_(weight)
    states = [state for each in optimizers for state in getattr(each, "state", {}).values() if isinstance(state, dict)]
    for state in states:
        for name, value in (("mu_product", 1.0), ("ax", 0.0)):  # NAdam, ASGD
            if hasattr(state.get(name), "fill_"):
                state[name].fill_(value)
    # DeepSpeed's and torch's optimizers count steps in the state, apex's in the group
    for counter in (*states, *groups):
        if hasattr(counter.get("step"), "zero_"):
            counter["step"].zero_()
        elif "step" in counter:
            counter["step"] = 0


def _meets(job: Job) -> bool:
    wrapped = job.stage in (1, 2, 3) or (job.may_be("bf16") and job.fp32_gradients)
    return wrapped and job.optimizer in ("adam", "adamw")


PATCH = Patch(
    title="ZeRO-1 to 3, and bf16: the optimizer takes a step before training starts",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.13.2"},
    changes=(
        *(
            Edit(
                f"{optimizer}.initialize_optimizer_states",
                replace="self.optimizer.step()",
                code="allocate(self, self.optimizer.step)",
                uses=(allocate,),
                effect=_EFFECT,
                when=_MATTERS,
            )
            for optimizer in (f"{_ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer", _BF16)
        ),
        Edit(
            f"{_ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3.initialize_optimizer_states",
            replace="self._optimizer_step(i)",
            code="allocate(self, self._optimizer_step, i)",
            uses=(allocate,),
            effect=_EFFECT,
            when=_MATTERS,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5104": "fixed in 0.13.2",
    },
    fixed_in="0.13.2",
    fixed=(Source(f"{_BF16}.step", "self._lazy_init_hp_params_optimizer_state()"),),
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _initial_step as initial_step

    cases = {
        f"ZeRO-{stage}": initial_step.compare(lab, torch.float32, {"zero_optimization": {"stage": stage}})
        for stage in (1, 2, 3)
    }
    bf16 = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    try:
        cases["bf16"] = initial_step.compare(lab, torch.bfloat16, bf16)
    except NotImplementedError as error:  # later releases reject this config
        if "unsupported mix" not in str(error):
            raise
    return initial_step.report(cases)
