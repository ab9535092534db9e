"""Parameter groups of which all parameters are frozen, and behind them others with options of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _groups(model: Any) -> list[dict[str, Any]]:
    """The second block; the first one, frozen; the head."""
    model.blocks[0].requires_grad_(False)
    return [
        {"params": list(model.blocks[1].parameters())},
        {"params": list(model.blocks[0].parameters()), "lr": 0.001, "weight_decay": 0.2},
        {"params": list(model.head.parameters()), "lr": 0.02, "weight_decay": 0.0},
    ]


@scenario("a frozen parameter group between two that are trained at different rates", stage="3")
def frozen_group_between(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, _groups(model))
    for step in range(4):
        job.train(engine, step)


@scenario("a new engine resumes a job with a frozen parameter group between two", stage="3")
def resumed_with_frozen_group(job: Job) -> None:
    def make(_: int) -> Any:
        model = job.MLP()
        return job.engine(model, _groups(model))

    job.resume(make)
