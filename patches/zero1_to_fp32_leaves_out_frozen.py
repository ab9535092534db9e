"""`zero_to_fp32` of a ZeRO-1 checkpoint leaves out frozen parameters.

Why: the frozen parameters of a checkpoint are merged from a part of its own in the file with the model's state, which
    is written from ZeRO-2 on. Of a ZeRO-1 checkpoint with frozen parameters (the base model under LoRA)
    `get_fp32_state_dict_from_zero_checkpoint` and `convert_zero_checkpoint_to_fp32_state_dict` return the trained
    parameters and the buffers only, and `load_state_dict_from_zero_checkpoint`, which is not strict, leaves the model's
    others as they were. Nothing fails there.
How: where the part is missing, what the optimizer does not hold is taken from the model's state, which has it. As with
    ZeRO-2 it keeps its dtype, and `exclude_frozen_parameters` leaves it out. What is written does not change. The copy
    `zero_to_fp32.py` in the checkpoint's directory, run as a program, is out of dsfix's reach.
Changes: those who convert ZeRO-1 checkpoints with frozen parameters get these, too. The checkpoints are right and can
    be converted again.
Upstream: not fixed in 0.19.8, and not known to be reported; frozen parameters are merged since
    https://github.com/deepspeedai/DeepSpeed/pull/3205.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it merges them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PARSE = "deepspeed.utils.zero_to_fp32:parse_model_states"


def frozen(saved: Any) -> Any:
    """Shapes and values of what the model's state has beside buffers and the optimizer's parameters, or None."""
    import torch

    others = {*saved["buffer_names"], *saved["shared_params"]}.union(*saved["param_shapes"])
    found = {
        name: tensor
        for name, tensor in saved["module"].items()
        # empty: ZeRO-3's, which stand for parameters that are elsewhere
        if torch.is_tensor(tensor) and tensor.numel() and name not in others and not name.endswith("_extra_state")
    }
    return ({name: tensor.shape for name, tensor in found.items()}, found) if found else (None, None)


PATCH = Patch(
    title="zero_to_fp32 of a ZeRO-1 checkpoint leaves out frozen parameters",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _PARSE,
            after="frozen_param_fragments = state_dict.get(FROZEN_PARAM_FRAGMENTS, None)",
            code=f"""if frozen_param_shapes is None:
    from {__name__} import frozen
    frozen_param_shapes, frozen_param_fragments = frozen(state_dict)""",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/3205",),
    fixed_in=None,
)

_STEPS = 2
_FROZEN = "blocks.0.0."


def reproduce(lab: Lab) -> str:
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # to 0.15.4 with torch >= 2.6; the files are our own
    torch = lab.torch
    import inspect

    from dsfix.lab.checkpoints import train
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    model: Any = MLP()
    model.register_buffer("scale", torch.ones(1))
    for parameter in model.blocks[0][0].parameters():
        parameter.requires_grad_(False)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
    train(lab, engine, [regression_batch(rank=0, step=step) for step in range(_STEPS)])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    from deepspeed.utils.zero_to_fp32 import (  # type: ignore[import-not-found,unused-ignore]
        get_fp32_state_dict_from_zero_checkpoint,
    )

    weights = dict(get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp), tag="saved"))
    expected = {**lab.parameters(engine), "scale": torch.ones(1)}
    missing = sorted(expected.keys() - weights.keys())
    if missing and missing == [name for name in sorted(expected) if name.startswith(_FROZEN)]:
        raise BugPresent(f"of a ZeRO-1 checkpoint's {len(expected)} tensors {' and '.join(missing)} are left out")
    difference = largest_difference(weights, expected)
    assert difference.relative < 1e-6, difference
    if "exclude_frozen_parameters" in inspect.signature(get_fp32_state_dict_from_zero_checkpoint).parameters:
        excluded = get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp), tag="saved", exclude_frozen_parameters=True)
        assert sorted(excluded) == [name for name in sorted(expected) if not name.startswith(_FROZEN)], sorted(excluded)
    return f"all {len(expected)} tensors of a ZeRO-1 checkpoint are the model's within {difference.relative:.1e}"
