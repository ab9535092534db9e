"""`zero_to_fp32` omits the frozen parameters of a ZeRO-1 checkpoint.

Why: the frozen parameters of a checkpoint are merged from a separate entry in the model state file, which is written
    from ZeRO-2 on. For a ZeRO-1 checkpoint with frozen parameters (the base model under LoRA),
    `get_fp32_state_dict_from_zero_checkpoint` and `convert_zero_checkpoint_to_fp32_state_dict` return only the trained
    parameters and the buffers, and `load_state_dict_from_zero_checkpoint`, which is not strict, leaves the model's
    other parameters unchanged. Nothing fails.
How: if the entry is missing, parameters that the optimizer does not hold are taken from the model state. As with ZeRO-2
    it keeps its dtype, and `exclude_frozen_parameters` omits it. Checkpoints are written as before. The copy of
    `zero_to_fp32.py` in the checkpoint's directory is patched under `python -m dsfix run` if it is the installed
    release's.
Changes: converted ZeRO-1 checkpoints contain their frozen parameters. The checkpoints are correct and can be converted
    again.
Workaround: Scripts add what is missing from "module" of the checkpoint's `mp_rank_00_model_states.pt`, or train with
    ZeRO-2. You can keep it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PARSE = "deepspeed.utils.zero_to_fp32:parse_model_states"


def frozen(saved: Any) -> Any:
    """Shapes and values of the model state's tensors other than buffers and the optimizer's parameters, or None."""
    import torch

    others = {*saved["buffer_names"], *saved["shared_params"]}.union(*saved["param_shapes"])
    found = {
        name: tensor
        for name, tensor in saved["module"].items()
        # ZeRO-3 leaves empty tensors for parameters stored elsewhere
        if torch.is_tensor(tensor) and tensor.numel() and name not in others and not name.endswith("_extra_state")
    }
    if found:
        ran(__name__)  # the caller may exclude them
    return ({name: tensor.shape for name, tensor in found.items()}, found) if found else (None, None)


PATCH = Patch(
    title="zero_to_fp32 omits the frozen parameters of a ZeRO-1 checkpoint",
    severity=Severity.WRONG_RESULT,
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/3205": "related: merges frozen parameters since then",
    },
    present=(
        Source(
            "deepspeed.runtime.engine:DeepSpeedEngine._save_checkpoint",
            "save_frozen_param = self.zero_optimization_partition_gradients() and not exclude_frozen_parameters",
        ),
    ),
)

_STEPS = 2
_FROZEN = "blocks.0.0."


def reproduce(lab: Lab) -> str:
    from ._checkpoints import load_whole_files, train

    load_whole_files()
    torch = lab.torch
    model = lab.models.MLP()
    model.register_buffer("scale", torch.ones(1))
    for parameter in model.blocks[0][0].parameters():
        parameter.requires_grad_(False)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
    train(lab, engine, [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    from deepspeed.utils.zero_to_fp32 import (
        get_fp32_state_dict_from_zero_checkpoint,
    )

    weights = dict(get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp), tag="saved"))
    expected = {**lab.parameters(engine), "scale": torch.ones(1)}
    missing = sorted(expected.keys() - weights.keys())
    if missing and missing == [name for name in sorted(expected) if name.startswith(_FROZEN)]:
        raise BugPresent(f"of a ZeRO-1 checkpoint's {len(expected)} tensors {' and '.join(missing)} are missing")
    difference = lab.reference.largest_difference(weights, expected)
    assert difference.relative < 1e-6, difference
    if "exclude_frozen_parameters" in inspect.signature(get_fp32_state_dict_from_zero_checkpoint).parameters:
        excluded = get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp), tag="saved", exclude_frozen_parameters=True)
        assert sorted(excluded) == [name for name in sorted(expected) if not name.startswith(_FROZEN)], sorted(excluded)
    return f"all {len(expected)} tensors of a ZeRO-1 checkpoint match the model's within {difference.relative:.1e}"
