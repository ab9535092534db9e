"""ds_to_universal fails on a ZeRO-3 checkpoint with several parameter groups or sub-groups.

Why: ZeRO-3 keeps a flat tensor for each sub-group: one per parameter group (with and without weight decay in most
    trainers), and more where a rank has more than `sub_group_size` elements. 0.14.5 to 0.17.6 look for all parameters
    in the first one and fail at its end: "start (…) + length (…) exceeds dimension size". Nothing wrong is written.
How: where a parameter begins at the end of a flat tensor, it is the first one of the next sub-group.
    universal_checkpoint_load_subgroups fixes loading. On the command line: `python -m dsfix run python -m
    deepspeed.checkpoint.ds_to_universal …`.
Workaround: Scripts use one parameter group, and a `sub_group_size` that is larger than a rank's part of the model.
    You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EXTRACT = "deepspeed.checkpoint.ds_to_universal:extract_zero_shards_stage3"
_NEXT = """
_saved = state_dict[OPTIMIZER_STATE_DICT]
while offset >= flat_state["fp32"].numel() and _sub_group + 1 < len(_saved["fp32_flat_groups"]):
    offset, _sub_group = 0, _sub_group + 1
    flat_state["fp32"] = _saved["fp32_flat_groups"][_sub_group]
    for _moment in ("exp_avg", "exp_avg_sq"):
        flat_state[_moment] = _saved["optimizer_state_dict"]["state"][_sub_group][_moment]
"""
_EFFECT = "parameters were searched in all sub-groups (unpatched: RuntimeError)"
_AT_END = """(
    offset >= flat_state["fp32"].numel()
    and _sub_group + 1 < len(state_dict[OPTIMIZER_STATE_DICT]["fp32_flat_groups"])
)"""

PATCH = Patch(
    title="ds_to_universal fails on a ZeRO-3 checkpoint with several parameter groups or sub-groups",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.14.5,<0.18.0"},
    changes=(
        Edit(_EXTRACT, after="offset = 0", code="_sub_group = 0"),
        Edit(_EXTRACT, before="unpartitioned_numel = shape.numel()", code=_NEXT, effect=_EFFECT, when=_AT_END),
    ),
    symptom=r"extract_zero_shards_stage3[\s\S]*start \(\d+\) \+ length \(\d+\) exceeds dimension size",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5475": "introduced in 0.14.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7585": "fixed in 0.18.0",
    },
    fixed_in="0.18.0",
    present=(Source(_EXTRACT, "state_dict[OPTIMIZER_STATE_DICT]['fp32_flat_groups'][0]"),),
    fixed=(Source(_EXTRACT, "for idx, sub_group_shape in enumerate(param_shapes): ..."),),
)

_STEPS = 2
_SUB_GROUP_SIZE = 200


def reproduce(lab: Lab) -> str:
    from dsfix.lab.universal import convert_to_universal

    from ._checkpoints import require_universal_zero3, train

    require_universal_zero3()
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    options = {"lr": 0.01, "weight_decay": 0.0}
    model = lab.models.MLP()
    expected = lab.reference.train(model, [[batch] for batch in batches], model.loss, "AdamW", **options).parameters
    model = lab.models.MLP()
    groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": options},
        "zero_optimization": {"stage": 3, "sub_group_size": _SUB_GROUP_SIZE},
    }
    engine = lab.initialize(model, config, model_parameters=groups)
    sub_groups = len(engine.optimizer.fp16_groups)
    assert sub_groups > 2, sub_groups
    train(lab, engine, batches)
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    try:
        directory = lab.tmp / convert_to_universal(lab, lab.tmp, "saved") / "zero"
    except RuntimeError as error:
        passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        if "extract_zero_shards_stage3" in passed and "exceeds dimension size" in str(error):
            raise BugPresent(f"{sub_groups} sub-groups: {error}") from error
        raise

    differences = []
    for key in ("fp32", "exp_avg", "exp_avg_sq"):
        converted, here = {}, {}
        for name, parameter in engine.module.named_parameters():
            tensor = torch.load(directory / name / f"{key}.pt")
            tensor = tensor["param"] if isinstance(tensor, dict) else tensor
            converted[name] = tensor.view_as(expected[name])
            if key != "fp32":
                here[name] = lab.deepspeed.utils.safe_get_full_optimizer_state(parameter, key).cpu()
        differences.append(lab.reference.largest_difference(converted, here or expected))
        assert differences[-1].relative < 1e-4, f"{key}: {differences[-1]}"
    largest = max(difference.relative for difference in differences)
    return f"{sub_groups} sub-groups are converted: parameters and moments match within {largest:.1e}"
