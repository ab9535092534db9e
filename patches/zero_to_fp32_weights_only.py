"""`zero_to_fp32` beside torch 2.6 or later: UnpicklingError, "Weights only load failed".

Why: the files of a ZeRO checkpoint hold more than tensors: DeepSpeed's own ZeroStageEnum, LossScaler and
    fragment_address, the client state. Up to 0.15.4 `deepspeed.utils.zero_to_fp32` reads them with `torch.load`'s
    default, which torch 2.6 turned to `weights_only=True`. So fail `get_fp32_state_dict_from_zero_checkpoint`, what
    calls it (`load_state_dict_from_zero_checkpoint`, Lightning's conversion) and, under ZeRO-3, `load_checkpoint` with
    `load_optimizer_states=False`.
How: `weights_only=False`, as before torch 2.6 and as from DeepSpeed 0.16.0 on. This unpickles, which can run code: what
    is in the checkpoint directory that the script names, and nothing else. TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 still holds
    for it. The copy `zero_to_fp32.py` in the checkpoint's directory, run as a program, is out of dsfix's reach:
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its environment does the same for a checkpoint that is one's own.
Upstream: fixed by https://github.com/deepspeedai/DeepSpeed/pull/6751 (0.16.0).
Retire: when DeepSpeed 0.15.4 is no longer supported here.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODEL = "deepspeed.utils.zero_to_fp32:parse_model_states"
_OPTIMIZER = "deepspeed.utils.zero_to_fp32:parse_optim_states"


PATCH = Patch(
    title="zero_to_fp32 fails with torch >= 2.6: Weights only load failed",
    severity=Severity.CRASH,
    # the fault is older, but nothing older than 0.12.0 has been run; pre-releases: NVIDIA's containers carry 2.6.0a0
    affects={"deepspeed": ">=0.12.0,<0.16.0", "torch": ">=2.6.0.dev0"},
    changes=(
        Edit(
            _MODEL,
            replace="torch.load(file, map_location=device)",
            code="torch.load(file, map_location=device, weights_only=False)",
        ),
        Edit(
            _OPTIMIZER,
            replace="torch.load(f, map_location=device)",
            code="torch.load(f, map_location=device, weights_only=False)",
        ),
    ),
    symptom=r"zero_to_fp32\.py[\s\S]*Weights only load failed",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/6751",),
    fixed_in="0.16.0",
    fixed=(Source(_MODEL, "torch.load(file, map_location=device, weights_only=False)"),),
)

_STEPS = 2


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from dsfix.lab.checkpoints import refused, train
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 2},
    }
    model = MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, [regression_batch(rank=0, step=step) for step in range(_STEPS)])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    from deepspeed.utils.zero_to_fp32 import (  # type: ignore[import-not-found,unused-ignore]
        get_fp32_state_dict_from_zero_checkpoint,
    )

    try:
        weights = get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp), tag="saved")
    except UnpicklingError as error:
        if what := refused(error, "zero_to_fp32"):
            raise BugPresent(f"get_fp32_state_dict_from_zero_checkpoint: {what}") from error
        raise
    difference = largest_difference(dict(weights), lab.parameters(engine))
    assert difference.relative < 1e-6, difference
    return f"the fp32 weights of a ZeRO-2 checkpoint are the model's within {difference.relative:.1e}"
