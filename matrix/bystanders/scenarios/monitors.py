"""Jobs that log to wandb."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


class _Wandb(ModuleType):
    """wandb before 0.20, as far as DeepSpeed's monitor uses it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.logged: list[tuple[Any, ...]] = []

    def init(self, **_: Any) -> None:
        pass

    def log(
        self, data: dict[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        self.logged += [(label, float(value), step, commit, sync) for label, value in data.items()]


@scenario("the loss goes to wandb, of a release before 0.20", works_around=("wandb_log_sync",), stage="03")
def logged_to_wandb(job: Job) -> None:
    wandb = _Wandb()
    sys.modules["wandb"] = wandb
    try:
        engine = job.engine(job.MLP(), wandb={"enabled": True, "project": "bystander"}, steps_per_print=1)
        for step in range(3):
            job.train(engine, step)
    finally:
        del sys.modules["wandb"]
    # from 0.18.3 on the loss itself is logged only with `monitor_train_loss`
    job.bits("logged", repr([each for each in wandb.logged if each[0] != "Train/Samples/train_loss"]))
