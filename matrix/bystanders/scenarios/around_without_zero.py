"""Checkpoints and saved weights without ZeRO-3, in scripts that work around one of their bugs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _one(release: str, **levels: str) -> dict[str, Any]:
    """Without ZeRO on one rank, with these levels, on this release: one job."""
    setting = {**space.plain(), "stage": "0", "ranks": "1", **levels}
    return {"release": release, "pinned": [setting], **{name: (level,) for name, level in setting.items()}}


@scenario("weights are moved to the CPU before accelerate's function copies them, and training goes on",
    works_around=("saving_copies_on_gpu",), **_one("0.15.4", stage="2"))  # fmt: skip
def moved_before_saving(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        weights = {name: weight.cpu() for name, weight in engine.module.state_dict().items()}
        if not job.plain:
            clone = importlib.import_module("deepspeed.checkpoint.utils").clone_tensors_for_torch_save
            weights = clone(weights)
        for name, weight in weights.items():
            job.note(f"step {step}: {name}", weight)


@scenario("the optimizer's state is in the checkpoint's client state, and the script puts it back",
    works_around=("stage0_checkpoint_loses_optimizer",), **_one("0.18.3", precision="bf16"))  # fmt: skip
def state_in_client_state(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(5):
        if step == 2:
            if job.plain:
                job.save(engine, "two")
                engine = job.engine(job.MLP(seed=1))
                job.load(engine, "two")
            else:
                client = {"states": engine.optimizer.state_dict()}
                engine.save_checkpoint(str(job.tmp), tag="two", client_state=client)
                engine = job.engine(job.MLP(seed=1))
                _, client = engine.load_checkpoint(str(job.tmp), tag="two")
                engine.optimizer.load_state_dict(client["states"])
            job.look(engine, "loaded")
        job.train(engine, step)


@scenario("the fp32 copies are renewed after a checkpoint is loaded without the optimizer's states",
    works_around=("stage0_load_without_optimizer",), **_one("0.18.9", precision="bf16"))  # fmt: skip
def copies_renewed(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(5):
        if step == 2:
            job.save(engine, "two")
            engine = job.engine(job.MLP(seed=1))
            job.load(engine, "two", optimizer=False)
            if not job.plain:
                engine.optimizer.refresh_fp32_params()
            job.look(engine, "loaded")
        job.train(engine, step)
