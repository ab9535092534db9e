"""Models made after a zero.Init in which torch.nn.utils.skip_init has made a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


# on one rank: nothing initializes the padding of more
@scenario(
    "a model made after a zero.Init with a skip_init",
    pinned=[{"stage": "3", "ranks": "1"}],
    stage="123",
    ranks=("1",),
)
def made_after_skip_init(job: Job) -> None:
    if not job.plain:
        functional, utils = job.torch.nn.functional, job.torch.nn.utils
        linear = functional.linear
        config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
        try:
            with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
                utils.skip_init(job.torch.nn.Linear, 4, 4)
        finally:
            functional.linear = linear  # zero.Init leaves its own
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
