"""Parameters without elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_PINNED = [
    *({"stage": stage, "precision": half, "ranks": ranks} for stage in "12" for half in ("fp16",) for ranks in "12"),
    *({"stage": stage, "offload": "optimizer", "accumulation": "2"} for stage in "12"),
    {"stage": "2", "offload": "optimizer", "precision": "fp16", "ranks": "1", "overlap_comm": "true"},
    {"stage": "1", "overlap_comm": "true", "accumulation": "2", "buckets": "small"},
]


def _forward(module: Any, inputs: Any) -> Any:
    hidden = module.inside(inputs).sum(1, keepdim=True) + module.first.sum() + module.end.sum()
    return module.above(module.below(inputs).relu()) + hidden


@scenario("parameters without elements: first, in the middle and last", pinned=_PINNED)
def without_elements(job: Job) -> None:
    nn = job.torch.nn
    first, end = (nn.Parameter(job.torch.empty(0)) for _ in range(2))
    below, inside, above = nn.Linear(16, 16), nn.Linear(16, 0), nn.Linear(16, 1)
    model = job.model(_forward, first=first, below=below, inside=inside, above=above, end=end)
    engine = job.engine(
        model, parameters=[first, *(p for each in (below, inside, above) for p in each.parameters()), end]
    )
    for step in range(4):
        job.train(engine, step)
