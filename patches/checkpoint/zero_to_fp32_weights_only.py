"""`zero_to_fp32` with torch 2.6 or later: UnpicklingError, "Weights only load failed".

Why: the files of a ZeRO checkpoint contain more than tensors: DeepSpeed's own ZeroStageEnum, LossScaler and
    fragment_address, the client state. Through 0.15.4 `deepspeed.utils.zero_to_fp32` reads them with `torch.load`'s
    default, which torch 2.6 changed to `weights_only=True`. This breaks `get_fp32_state_dict_from_zero_checkpoint`, its
    callers (`load_state_dict_from_zero_checkpoint`, Lightning's conversion) and, with ZeRO-3, `load_checkpoint` with
    `load_optimizer_states=False`.
How: `weights_only=False`, as before torch 2.6 and since DeepSpeed 0.16.0. This unpickles, which can run code, but only
    from the files that the script names. TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 still applies. The copy `zero_to_fp32.py` in a
    checkpoint is patched under `python -m dsfix run` if it is the installed release's.
Workaround: Scripts set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, or replace `torch.load` by a function that passes
    `weights_only=False`. You can keep it.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

from ._torch_load import load_whole

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODEL = "deepspeed.utils.zero_to_fp32:parse_model_states"
_OPTIMIZER = "deepspeed.utils.zero_to_fp32:parse_optim_states"


PATCH = Patch(
    title="zero_to_fp32 fails with torch 2.6 or later: Weights only load failed",
    severity=Severity.CRASH,
    # pre-releases: NVIDIA's containers ship 2.6.0a0
    affects={"deepspeed": ">=0.12.0,<0.16.0", "torch": ">=2.6.0.dev0"},
    changes=(
        Edit(
            _MODEL,
            replace="state_dict = torch.load(file, map_location=device)",
            code="state_dict = load_whole(torch.load, file, map_location=device)",
            uses=(load_whole,),
            effect=RAN,  # torch reads some files either way
        ),
        Edit(
            _OPTIMIZER,
            replace="state_dict = torch.load(f, map_location=device)",
            code="state_dict = load_whole(torch.load, f, map_location=device)",
            uses=(load_whole,),
            effect=RAN,  # torch reads some files either way
        ),
    ),
    symptom=r"zero_to_fp32\.py[\s\S]*Weights only load failed",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6751": "fixed in 0.16.0",
    },
    fixed_in="0.16.0",
    fixed=(Source(_MODEL, "torch.load(file, map_location=device, weights_only=False)"),),
)

_STEPS = 2


def reproduce(lab: Lab) -> str:
    from ._checkpoints import refused, train

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 2},
    }
    model = lab.models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    from deepspeed.utils.zero_to_fp32 import (
        get_fp32_state_dict_from_zero_checkpoint,
    )

    try:
        weights = get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp), tag="saved")
    except UnpicklingError as error:
        if what := refused(error, "zero_to_fp32"):
            raise BugPresent(f"get_fp32_state_dict_from_zero_checkpoint: {what}") from error
        raise
    difference = lab.reference.largest_difference(dict(weights), lab.parameters(engine))
    assert difference.relative < 1e-6, difference
    return f"the fp32 weights of a ZeRO-2 checkpoint match the model's within {difference.relative:.1e}"
