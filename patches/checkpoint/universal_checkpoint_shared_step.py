"""ZeRO-3 with several sub-groups and torch's Adam: after loading a universal checkpoint, each step counts repeatedly.

Why: ZeRO-3 keeps a flat tensor for each sub-group: one per parameter group, and more where a rank has more than
    `sub_group_size` elements. Since 0.18.0 loading a universal checkpoint gives all of them the same `step`. torch's
    Adam and AdamW count steps in place in a tensor: with n sub-groups each step then counts n times, and the bias
    correction is for a later step. DeepSpeed's own optimizers count in a number and are not affected.
How: each sub-group gets its own copy.
Changes: jobs with torch's Adam or AdamW and several sub-groups that resume from a universal checkpoint make the same
    updates as without the interruption. The universal checkpoint is correct; what was saved since a wrong load has a
    `step` that is too large, which matters less as training continues.
Workaround: After the load scripts give each state of `engine.optimizer.optimizer` a copy of its `step`.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = (
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state_from_checkpoint_dir_stage3"
)
_SHARED = "self.optimizer.state[fp32_param]['step'] = state_step"

PATCH = Patch(
    title="ZeRO-3 + torch's Adam: after loading a universal checkpoint, the step count advances once per sub-group",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.0"},
    changes=(
        Edit(
            _LOAD,
            replace=_SHARED,
            code=f"{_SHARED}.clone() if torch.is_tensor(state_step) else state_step",
            effect="each sub-group got its own step count (unpatched: all share one)",
            when="torch.is_tensor(state_step) and len(self.fp16_groups) > 1",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7585": "introduced in 0.18.0",
    },
    present=(
        # it is what was saved, and nothing copies it after the loop
        Source(
            _LOAD,
            """
state_step = optim_sd[OPTIMIZER_STATE_DICT]['state'][0]['step']
for key in ["fp32", "exp_avg", "exp_avg_sq"]:
    ...
for param_group in self.optimizer.param_groups:
    ...
""",
        ),
    ),
)

_STEPS = 4
_SUB_GROUP_SIZE = 200


def reproduce(lab: Lab) -> str:
    from ._checkpoints import resume_in_sub_groups, train

    resumed = resume_in_sub_groups(lab, _STEPS, _SUB_GROUP_SIZE)
    zero = resumed.engine.optimizer
    train(lab, resumed.engine, resumed.rest)
    steps = sorted({int(state["step"]) for state in zero.optimizer.state.values()})
    sub_groups = len(zero.fp16_groups)
    difference = lab.reference.largest_difference(lab.parameters(resumed.engine), resumed.whole)
    if steps == [_STEPS // 2 + len(resumed.rest) * sub_groups] and difference.relative > 1e-4:
        raise BugPresent(f"{sub_groups} sub-groups are at step {steps[0]} after {_STEPS} steps: {difference}")
    assert steps == [_STEPS], steps
    assert difference.relative < 1e-4, f"after {_STEPS} steps {difference}"
    return (
        f"{sub_groups} sub-groups are at step {_STEPS} after {_STEPS} steps; the parameters match plain PyTorch within"
        f" {difference.relative:.1e}"
    )
