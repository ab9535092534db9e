"""ZeRO-1/2 that reduces each part of a gradient to the rank that owns it: `use_multi_rank_bucket_allreduce` off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import experts_apart

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_OFF: Any = {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}}
_PINNED = [{"stage": "1"}, {"stage": "2", "ranks": "4"}, {"stage": "2", "offload": "optimizer", "clipping": "on"}]


@scenario("parts of gradients are reduced to their owner", stage="12", pinned=_PINNED)
def reduced_to_owner(job: Job) -> None:
    engine = job.engine(job.MLP(), **_OFF)
    for step in range(3):
        job.train(engine, step)


_EXPERTS: Any = {
    "stage": "12",
    "offload": ("none",),
    "precision": ("fp32",),
    "accumulation": ("1", "2"),
    "optimizer": ("SGD", "AdamW"),
}


@scenario(
    "experts on each rank, reduced to their owner",
    ranks=("2", "4"),
    pinned=[{"stage": "2"}],
    works_around=("zero12_experts_reduced_to_other_rank",),
    **_EXPERTS,
)
def experts_reduced_to_owner(job: Job) -> None:
    experts_apart._trained(job, 1, **_OFF)


@scenario(
    "experts on two of four ranks, reduced to their owner",
    ranks=("4",),
    pinned=[{"stage": "2", "ranks": "4"}],
    **_EXPERTS,
)
def shared_experts_reduced_to_owner(job: Job) -> None:
    experts_apart._trained(job, 2, **_OFF)
