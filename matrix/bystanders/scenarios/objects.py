"""Modules that pass objects which are no tensors beside those that are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@dataclasses.dataclass
class _Info:
    layers: int


@scenario("layers take an object, and return it in a tuple or a dict beside a tensor", stage="3")
def objects_beside_tensors(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)

    def first(self: Any, x: Any, info: Any) -> Any:
        return self.body(x).tanh(), _Info(info.layers + 1)

    def second(self: Any, x: Any, info: Any) -> Any:
        return {"x": self.body(x).tanh(), "info": _Info(info.layers + 1)}

    def whole(self: Any, x: Any) -> Any:
        x, info = self.first(x, _Info(0))
        found = self.second(x, info)
        return self.head(found["x"]) / found["info"].layers

    model = job.model(
        whole,
        first=job.model(first, body=nn.Linear(16, 16)),
        second=job.model(second, body=nn.Linear(16, 16)),
        head=nn.Linear(16, 1),
    )
    engine = job.engine(model)
    for step in range(3):
        job.train(engine, step)
