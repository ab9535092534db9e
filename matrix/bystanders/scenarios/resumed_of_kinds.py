"""Jobs of kinds that few scripts have, which resume from a checkpoint."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import onebit_lambs, second_copies, twin_flow

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ONCE: Any = {"accumulation": ("1",), "partitioning": ("all",)}


@scenario(
    "ZeRO++ hpZ, in nodes of two ranks, resumes from a checkpoint",
    pinned=[{"stage": "3", "partitioning": "all"}],
    **{**second_copies._FITS, **_ONCE, "ranks": ("2",)},
)
def hpz_resumed(job: Job) -> None:
    config = second_copies._hpz(2)
    job.resume(lambda seed: job.engine(second_copies._model(job, seed), zero_optimization=config))


@scenario(
    "ZeRO-3 that averages gradients by all-reduce resumes from a checkpoint",
    pinned=[{"stage": "3", "precision": "bf16", "partitioning": "all"}],
    **{**_ONCE, "stage": "3", "ranks": ("2",)},
)
def all_reduced_resumed(job: Job) -> None:
    def make(seed: int) -> Any:
        return job.engine(second_copies._model(job, seed), zero_optimization={"reduce_scatter": False})

    job.resume(make)


@scenario("Twin-Flow resumes from a checkpoint", **{**twin_flow._HERE, "accumulation": ("1",), "clipping": ("off",)})
def twin_flow_resumed(job: Job) -> None:
    job.resume(lambda seed: twin_flow._engine(job, job.MLP(seed=seed)))


@scenario(
    "1-bit LAMB resumes from a checkpoint",
    pinned=[{"ranks": "1"}],
    **{**onebit_lambs._FITS, "accumulation": ("1",), "clipping": ("off",)},
)
def onebit_lamb_resumed(job: Job) -> None:
    sys.modules.setdefault("cupy", ModuleType("cupy"))  # nothing of it is used but its name
    params = {**onebit_lambs._PARAMS, "freeze_step": 3}

    def make(seed: int) -> Any:
        model = job.MLP(seed=seed)
        whole = {**space.config(job.setting), "optimizer": {"type": "OneBitLamb", "params": params}}
        initial = job._whole(model)
        engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
        job._initial[id(engine)] = initial
        return engine

    job.resume(make)
