"""ZeRO-1/2 that reduces each part of a gradient to the rank that owns it: `use_multi_rank_bucket_allreduce` off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_OFF: Any = {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}}
_PINNED = [{"stage": "1"}, {"stage": "2", "ranks": "4"}, {"stage": "2", "offload": "optimizer", "clipping": "on"}]


@scenario("parts of gradients are reduced to their owner", stage="12", pinned=_PINNED)
def reduced_to_owner(job: Job) -> None:
    engine = job.engine(job.MLP(), **_OFF)
    for step in range(3):
        job.train(engine, step)


def _experts(job: Job, ep_size: int) -> None:
    from dsfix.lab import experts

    if job.plain:
        model: Any = experts.Mixture()
        initial = {name: each.detach().clone() for name, each in model.named_parameters()}
        engine = job.engine(model)
    else:
        model = experts.Sharded(job._lab, ep_size)
        initial = model.named({name: each.detach().clone() for name, each in model.named_parameters()})
        config = space.config(job.setting)
        space._merge(config, _OFF)
        engine = job._lab.initialize(model, config, model_parameters=model.groups())
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        now = job.parameters(engine)
        for name, parameter in (now if job.plain else model.named(now)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name].cpu())


_EXPERTS: Any = {
    "stage": "12",
    "offload": ("none",),
    "precision": ("fp32",),
    "accumulation": ("1", "2"),
    "optimizer": ("SGD", "AdamW"),
}


@scenario("experts on each rank, reduced to their owner", ranks=("2", "4"), pinned=[{"stage": "2"}], **_EXPERTS)
def experts_reduced_to_owner(job: Job) -> None:
    _experts(job, 1)


@scenario(
    "experts on two of four ranks, reduced to their owner",
    ranks=("4",),
    pinned=[{"stage": "2", "ranks": "4"}],
    **_EXPERTS,
)
def shared_experts_reduced_to_owner(job: Job) -> None:
    _experts(job, 2)
