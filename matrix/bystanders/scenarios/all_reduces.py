"""ZeRO-3 that averages whole buckets, in the dtype in which the gradients are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario(
    "ZeRO-3 averages gradients by all-reduce",
    pinned=[{"stage": "3"}, {"stage": "3", "precision": "bf16"}, {"stage": "3", "precision": "fp16"}],
    stage="3",
)
def all_reduced(job: Job) -> None:
    """Of sizes that ranks share without padding, whose bits differ between runs."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    model = job.model(
        lambda self, x: self.head(self.body(x).tanh()), body=nn.Linear(16, 16), head=nn.Linear(16, 1, bias=False)
    )
    engine = job.engine(model, zero_optimization={"reduce_scatter": False})
    for step in range(3):
        job.train(engine, step)
