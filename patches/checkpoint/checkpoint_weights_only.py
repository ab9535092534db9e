"""`load_checkpoint` with torch 2.6 or later fails with UnpicklingError, "Weights only load failed".

Why: checkpoint files contain more than tensors: DeepSpeed's own ZeroStageEnum and LossScaler, and the client state.
    Through 0.15.4 they are read with `torch.load`'s default, which torch 2.6 changed to `weights_only=True`: saving
    works, resuming fails. Without ZeRO, and with only tensors and numbers in the client state, it works.
How: `weights_only=False` in the checkpoint engine that `load_checkpoint` reads with, as before torch 2.6 and since
    DeepSpeed 0.16.0. Unpickling can run code, but only from the checkpoint directory that the script names (or in the
    files that a JSON for `init_inference` lists). Weights that DeepSpeed's inference and `zero.Init` read in other ways
    stay weights-only, and TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 still applies to all of them. Nebula's engine is unchanged.
Workaround: Scripts set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, declare DeepSpeed's classes safe with `add_safe_globals`, or
    replace `torch.load` by a function that passes `weights_only=False`. You can keep it.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

from ._torch_load import load_whole

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.load"
_FULL = "torch.load(path, map_location=map_location, weights_only=False)"

PATCH = Patch(
    title="load_checkpoint fails with torch 2.6 or later: Weights only load failed",
    severity=Severity.CRASH,
    # pre-releases: NVIDIA's containers ship 2.6.0a0
    affects={"deepspeed": ">=0.12.0,<0.16.0", "torch": ">=2.6.0.dev0"},
    changes=(
        Edit(
            _LOAD,
            replace="partition = torch.load(path, map_location=map_location)",
            code="partition = load_whole(torch.load, path, map_location=map_location)",
            uses=(load_whole,),
            effect=RAN,  # torch reads some files either way
        ),
    ),
    symptom=r"torch_checkpoint_engine\.py[\s\S]*Weights only load failed",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6751": "fixed in 0.16.0, also for inference's files",
        "https://github.com/allenai/open-instruct/issues/673": "reported",
        "https://github.com/axolotl-ai-cloud/axolotl/issues/2634": "reported",
    },
    fixed_in="0.16.0",
    fixed=(Source(_LOAD, _FULL),),
)

_STEPS = 4
_SGD = {"lr": 0.1, "momentum": 0.9}  # the momentum shows whether the optimizer's state was read


def reproduce(lab: Lab) -> str:
    from ._checkpoints import refused, train

    models, reference = lab.models, lab.reference
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = models.MLP()
    expected = reference.train(model, [[batch] for batch in batches], model.loss, "SGD", **_SGD)

    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": _SGD},
        "zero_optimization": {"stage": 1},
    }
    model = models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    model = models.MLP(seed=1)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    try:
        engine.load_checkpoint(str(lab.tmp), tag="half")
    except UnpicklingError as error:
        if what := refused(error, "torch_checkpoint_engine"):
            raise BugPresent(f"load_checkpoint: {what}") from error
        raise
    train(lab, engine, batches[_STEPS // 2 :])
    after = f"resumed after {_STEPS // 2} of {_STEPS} steps"
    return reference.compare(lab.parameters(engine), expected.parameters, after=after)
