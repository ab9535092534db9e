"""DeepSpeed's FusedAdam without ZeRO, whose weights FP16_Optimizer keeps in flat copies."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsfix.lab import half
from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HERE: Any = {"stage": "0", "precision": ("fp16", "bf16"), "optimizer": ("client's AdamW",)}
_PINNED = [{"precision": "fp16", "optimizer": "client's AdamW"}]


def _engine(job: Job, model: Any) -> Any:
    def fused(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    return job.engine(model, optimizer=fused)


@scenario("FusedAdam", pinned=_PINNED, **_HERE)
def fused_adam(job: Job) -> None:
    engine = _engine(job, job.MLP())
    for step in range(4):
        job.train(engine, step)


@scenario("FusedAdam, with a frozen half among the parameters it is given", pinned=_PINNED, **_HERE)
def fused_adam_frozen(job: Job) -> None:
    model = job.Branches()
    model.second.requires_grad_(False)
    engine = _engine(job, model)
    for step in range(4):
        job.train(engine, step, lambda batch: job.loss(engine, batch, True))


@scenario("FusedAdam resumes from a checkpoint", pinned=_PINNED, **_HERE)
def fused_adam_resumed(job: Job) -> None:
    job.resume(lambda seed: _engine(job, job.MLP(seed=seed)))


@scenario(
    "FusedAdam, and a loss that is nan", pinned=_PINNED, stage="0", precision=("fp16",), optimizer=_HERE["optimizer"]
)
def fused_adam_nan_loss(job: Job) -> None:
    engine = _engine(job, job.MLP())
    for step in range(4):
        factor = float("nan") if step == 1 else 1.0
        job.train(engine, step, lambda batch, factor=factor: job.loss(engine, batch) * factor)
