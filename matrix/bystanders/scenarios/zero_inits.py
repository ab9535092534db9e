"""Models made after a zero.Init, of classes that it has wrapped meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


# on one rank: nothing initializes the padding of more
@scenario(
    "a model made after a zero.Init, of a class without an __init__ of its own",
    pinned=[{"stage": "3", "ranks": "1"}],
    stage="123",
    ranks=("1",),
)
def made_after_zero_init(job: Job) -> None:
    class Model(job.MLP):  # type: ignore[misc,name-defined,unused-ignore]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    if not job.plain:
        linear = job.torch.nn.functional.linear
        config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
        try:
            with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
                job.torch.nn.Linear(4, 4)
        finally:
            job.torch.nn.functional.linear = linear  # zero.Init leaves its own
    engine = job.engine(Model())
    for step in range(3):
        job.train(engine, step)
