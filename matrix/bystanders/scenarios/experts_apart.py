"""Experts that two ranks share, without ZeRO, compared with plain PyTorch that has all of them in each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {
    "stage": "0",
    "precision": ("fp32",),
    "ranks": ("2", "4"),
    "accumulation": ("1", "2"),
    "optimizer": ("SGD", "AdamW"),
}


def _trained(job: Job, ep_size: int, **more: Any) -> None:
    """more: of the config, merged over the setting's."""
    from dsfix.lab import experts

    if job.plain:
        model: Any = experts.Mixture()
        initial = {name: each.detach().clone() for name, each in model.named_parameters()}
        engine = job.engine(model)
    else:
        model = experts.Sharded(job._lab, ep_size)
        initial = model.named({name: each.detach().clone() for name, each in model.named_parameters()})
        config = space.config(job.setting)
        space._merge(config, more)
        engine = job._lab.initialize(model, config, model_parameters=model.groups())
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        now = job.parameters(engine)
        for name, parameter in (now if job.plain else model.named(now)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name].cpu())


@scenario(
    "experts on two ranks, without ZeRO", pinned=[{"clipping": "on"}, {"ranks": "4", "clipping": "on"}, {}], **_FITS
)
def experts_of_two_ranks(job: Job) -> None:
    _trained(job, 2)


@scenario("experts on each rank, without ZeRO", pinned=[{"clipping": "on"}], **_FITS)
def experts_of_each_rank(job: Job) -> None:
    _trained(job, 1)
