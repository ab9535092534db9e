"""Scripts that log to wandb through the engine's monitor themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import monitors

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("a script logs to wandb, of a release before 0.20, with and without sync", stage="03", ranks=("1", "2"))
def logged_by_hand(job: Job) -> None:
    wandb = monitors._Wandb()
    sys.modules["wandb"] = wandb
    try:
        engine = job.engine(job.MLP(), wandb={"enabled": True, "project": "bystander"}, steps_per_print=1)
        for step in range(2):
            job.train(engine, step)
            if not job.plain:
                monitor = engine.monitor.wandb_monitor
                for options in ({}, {"commit": True}, {"sync": True}, {"sync": False, "commit": False}):
                    try:
                        monitor.log({"mine": step}, step=step, **options)
                    except TypeError as error:  # without `sync` since 0.17.2
                        job.survived(f"step {step}: {options}", error)
    finally:
        del sys.modules["wandb"]
    job.bits("logged", repr([each for each in wandb.logged if each[0] == "mine"]))
