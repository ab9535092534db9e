"""`load_checkpoint` beside torch 2.6 or later: UnpicklingError, "Weights only load failed".

Why: the files of a checkpoint hold more than tensors: DeepSpeed's own ZeroStageEnum and LossScaler, the client state.
    Up to 0.15.4 they are read with `torch.load`'s default, which torch 2.6 turned to `weights_only=True`: saving works,
    resuming fails. Without ZeRO, and with nothing but tensors and numbers in the client state, it works.
How: `weights_only=False` in the checkpoint engine that `load_checkpoint` reads with, as before torch 2.6 and as from
    DeepSpeed 0.16.0 on. This unpickles, which can run code: what is in the checkpoint directory that the script names
    (or in the files that a JSON for `init_inference` lists), and nothing else. Weights that DeepSpeed's inference and
    `zero.Init` read by other ways stay weights-only, and TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 still holds for all. Nebula's
    engine is left as it is.
Upstream: fixed by https://github.com/deepspeedai/DeepSpeed/pull/6751 (0.16.0), which opened inference's files as well;
    https://github.com/allenai/open-instruct/issues/673, https://github.com/axolotl-ai-cloud/axolotl/issues/2634.
Retire: when DeepSpeed 0.15.4 is no longer supported here.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.load"
_FULL = "torch.load(path, map_location=map_location, weights_only=False)"

PATCH = Patch(
    title="load_checkpoint fails with torch >= 2.6: Weights only load failed",
    severity=Severity.CRASH,
    # the fault is older, but nothing older than 0.12.0 has been run; pre-releases: NVIDIA's containers carry 2.6.0a0
    affects={"deepspeed": ">=0.12.0,<0.16.0", "torch": ">=2.6.0.dev0"},
    changes=(Edit(_LOAD, replace="torch.load(path, map_location=map_location)", code=_FULL),),
    symptom=r"torch_checkpoint_engine\.py[\s\S]*Weights only load failed",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/6751",
        "https://github.com/allenai/open-instruct/issues/673",
        "https://github.com/axolotl-ai-cloud/axolotl/issues/2634",
    ),
    fixed_in="0.16.0",
    fixed=(Source(_LOAD, _FULL),),
)

_STEPS = 4
_SGD = {"lr": 0.1, "momentum": 0.9}  # the momentum shows whether the optimizer's state was read


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from dsfix.lab.checkpoints import refused, train
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference
    from dsfix.lab.reference import train as reference

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = MLP()
    expected = reference(model, [[batch] for batch in batches], model.loss, "SGD", **_SGD)

    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": _SGD},
        "zero_optimization": {"stage": 1},
    }
    model = MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    model = MLP(seed=1)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    try:
        engine.load_checkpoint(str(lab.tmp), tag="half")
    except UnpicklingError as error:
        if what := refused(error, "torch_checkpoint_engine"):
            raise BugPresent(f"load_checkpoint: {what}") from error
        raise
    train(lab, engine, batches[_STEPS // 2 :])
    difference = largest_difference(lab.parameters(engine), expected.parameters)
    done = f"resumed after {_STEPS // 2} of {_STEPS} steps"
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
