"""Experts without ZeRO in half precision, with DeepSpeed's FusedAdam."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsfix.lab import half
from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {
    "stage": "0",
    "precision": ("fp16",),
    "ranks": ("2", "4"),
    "accumulation": ("1", "2"),
    "optimizer": ("client's AdamW",),
}
_PINNED = {"precision": "fp16", "optimizer": "client's AdamW"}


def _trained(job: Job, ep_size: int) -> None:
    from dsfix.lab import experts

    def fused(given: Any) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    model: Any = experts.Mixture() if job.plain else experts.Sharded(job._lab, ep_size)

    def named(tensors: dict[str, Any]) -> dict[str, Any]:
        return tensors if job.plain else dict(model.named(tensors))

    engine = job.engine(model, None if job.plain else model.groups(), fused)
    initial = named({name: each.detach().float().cpu().clone() for name, each in model.named_parameters()})
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in named(job.weights(engine)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name])


@scenario("experts on two ranks, in fp16 without ZeRO", pinned=[_PINNED, {**_PINNED, "clipping": "on"}], **_FITS)
def half_experts_of_two_ranks(job: Job) -> None:
    _trained(job, 2)


@scenario("experts on each rank, in fp16 without ZeRO", pinned=[_PINNED], **_FITS)
def half_experts_of_each_rank(job: Job) -> None:
    _trained(job, 1)
