"""ZeRO-3: only the first sub-group of a universal checkpoint is loaded; the other parameters keep their values.

Why: ZeRO-3 keeps a flat tensor for each sub-group: one per parameter group, and more where a rank has more than
    `sub_group_size` elements. 0.14.5 to 0.17.6 load only the parameters and moments of sub-group 0. If the checkpoint
    was saved with one sub-group (by more ranks, say) nothing fails: the rest of the model keeps its initial weights.
    Otherwise torch rejects the optimizer state: "doesn't match the size of optimizer's group".
How: loads the other sub-groups in the same way, and gives the optimizer a state for the sub-groups of this job. With
    one sub-group, or with the optimizer on NVMe, nothing changes. Parameter groups get their own saved hyper-parameters
    if their number is the same; upstream gives all of them the first group's.
    Not fixed: one sub-group, where the checkpoint has several; torch still rejects these.
Changes: jobs with several sub-groups that load a universal checkpoint under ZeRO-3 start from what was saved. The
    universal checkpoint itself is correct and can be loaded again. What was trained and saved since a wrong load
    started from a partly loaded model, with moments of zero for the rest.
Workaround: Scripts use one parameter group, and a `sub_group_size` that is larger than a rank's part of the model, in
    the job that saves and in the one that loads. You can keep it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = (
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state_from_checkpoint_dir_stage3"
)
_REST = f"""
if len(param_shapes) > 1 and not self.swap_optimizer:
    from {__name__} import load_other_sub_groups
    load_other_sub_groups(self, optim_sd[OPTIMIZER_STATE_DICT], checkpoint_dir, param_shapes)
"""


def load_other_sub_groups(
    zero: Any, saved: dict[str, Any], directory: str, shapes: Sequence[Mapping[str, Any]]
) -> None:
    """Load sub-groups 1, 2, …, and extend `saved`, the optimizer state of sub-group 0, to all of them."""
    import torch

    took_effect(__name__, "all sub-groups were loaded (unpatched: only the first)")
    first = saved["state"][0]
    state = {0: first}
    for index, names in enumerate(shapes[1:], start=1):
        loaded = {}
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            loaded[key] = torch.cat(
                [zero.load_hp_checkpoint_state(os.path.join(directory, name), key) for name in names]
            )
        zero.fp32_partitioned_groups_flat[index].data.copy_(loaded.pop("fp32"))
        # a copy: torch's optimizers count steps in place
        rest = {
            key: value.clone() if torch.is_tensor(value) else value for key, value in first.items() if key not in loaded
        }
        state[index] = {**rest, **loaded}
    saved["state"] = state

    zero._clear_fp32_optimizer_param_groups()
    zero._set_fp32_optimizer_param_groups()
    here, groups, position = zero.optimizer.param_groups, saved["param_groups"], count()
    if len(groups) != len(here):
        groups = groups[:1] * len(here)
    saved["param_groups"] = [
        {**group, "params": [next(position) for _ in of_here["params"]]} for group, of_here in zip(groups, here)
    ]


PATCH = Patch(
    title="ZeRO-3: only the first sub-group of a universal checkpoint is loaded",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.5,<0.18.0"},
    changes=(Edit(_LOAD, after="for key in key_list: ...", code=_REST),),
    symptom=r"load_hp_checkpoint_state_from_checkpoint_dir_stage3[\s\S]*doesn't match the size of optimizer's group",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5475": "introduced in 0.14.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7585": "fixed in 0.18.0",
    },
    fixed_in="0.18.0",
    present=(Source(_LOAD, "param_shapes[0].keys()"),),
    fixed=(Source(_LOAD, "for sub_group_id, fp16_group in enumerate(self.fp16_groups): ..."),),
    config=lambda job: job.stage == 3 and job.get("checkpoint", "load_universal") is True,
)

_STEPS = 4
_SUB_GROUP_SIZE = 200


def reproduce(lab: Lab) -> str:
    from ._checkpoints import resume_in_sub_groups, train

    resumed = resume_in_sub_groups(lab, _STEPS, _SUB_GROUP_SIZE)
    engine, half, initial = resumed.engine, resumed.half, resumed.initial
    loaded = lab.parameters(engine)
    names = [engine.param_names[parameter] for parameter in engine.optimizer.fp16_groups[0]]
    first_only = {name: half[name] if name in names else initial[name] for name in initial}
    lab.reference.compare(
        loaded, half, {f"loaded in part, {len(names)} of {len(loaded)}": first_only}, after="after the load"
    )
    train(lab, engine, resumed.rest)
    return lab.reference.compare(
        lab.parameters(engine), resumed.whole, after=f"after the load and {len(resumed.rest)} steps"
    )
