"""With a checkpoint `writer` and torch 2.6 or later, saved checkpoints cannot be loaded: "Weights only load failed".

Why: with `"checkpoint": {"writer": {...}}` in the config, the fast or the decoupled checkpoint engine saves and loads
    (with ZeRO-3, or with `data_parallel` in the writer's block; otherwise `deepspeed.initialize` fails). Its files
    contain DeepSpeed's own ZeroStageEnum and the like, as all others do, but are read with `torch.load`'s default,
    which torch 2.6 changed to `weights_only=True`: saving works, resuming fails. The files are correct.
How: `weights_only=False` in both engines, as in DeepSpeed without a writer. Unpickling can run code, but only from the
    checkpoint directory that the script names. TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 still applies.
Workaround: Scripts set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, or replace `torch.load` by a function that passes
    `weights_only=False`. You can keep it.
"""

from __future__ import annotations

import os
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

from ._torch_load import load_whole

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINES = "deepspeed.runtime.checkpoint_engine"
_FAST = f"{_ENGINES}.fast_checkpoint_engine:FastCheckpointEngine.load"
_DECOUPLED = f"{_ENGINES}.decoupled_checkpoint_engine:DecoupledCheckpointEngine.load"
_DEFAULT = "torch.load(path, map_location=map_location)"
_FULL = "torch.load(path, map_location=map_location, weights_only=False)"

PATCH = Patch(
    title="load_checkpoint with a checkpoint writer fails with torch 2.6 or later: Weights only load failed",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.1", "torch": ">=2.6.0.dev0"},
    changes=tuple(
        Edit(
            target,
            replace=f"sd = {_DEFAULT}",
            code="sd = load_whole(torch.load, path, map_location=map_location)",
            uses=(load_whole,),
            effect=RAN,  # torch reads some files either way
        )
        for target in (_FAST, _DECOUPLED)
    ),
    symptom=r"(fast|decoupled)_checkpoint_engine\.py[\s\S]*Weights only load failed",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8500": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7215": "introduced in 0.17.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/8502": "proposed fix, open",
    },
    present=(
        Source(_FAST, f"sd = {_DEFAULT}\nreturn sd"),
        Source(_DECOUPLED, f"sd = {_DEFAULT}\nreturn sd"),
        # what the default refuses to read
        Source(
            "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3._rigid_state_dict",
            "state_dict[ZERO_STAGE] = ZeroStageEnum.weights",
        ),
    ),
    fixed=(Source(_FAST, _FULL), Source(_DECOUPLED, _FULL)),
)

_STEPS = 4
_SGD = {"lr": 0.1, "momentum": 0.9}  # the momentum shows whether the optimizer's state was read


def reproduce(lab: Lab) -> str:
    from ._checkpoints import refused, train

    models, reference = lab.models, lab.reference
    os.environ.update(CROSS_RANK="0", CROSS_SIZE="1")  # as DeepSpeed's launcher does; the writers read them
    version = lab.deepspeed.__version__
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = models.MLP()
    expected = reference.train(model, [[batch] for batch in batches], model.loss, "SGD", **_SGD)

    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": _SGD},
        "zero_optimization": {"stage": 1},
        "checkpoint": {"writer": {"type": "PYTHON", "decoupled": False, "data_parallel": "replica"}},
    }
    model = models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    if type(engine.checkpoint_engine).__name__ != "FastCheckpointEngine":
        raise CannotTell(f"deepspeed {version} has no checkpoint writers")
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    model = models.MLP(seed=1)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    try:
        engine.load_checkpoint(str(lab.tmp), tag="half")
    except UnpicklingError as error:
        if what := refused(error, "fast_checkpoint_engine"):
            raise BugPresent(f"load_checkpoint: {what}") from error
        raise
    train(lab, engine, batches[_STEPS // 2 :])
    after = f"resumed after {_STEPS // 2} of {_STEPS} steps"
    return reference.compare(lab.parameters(engine), expected.parameters, after=after)
