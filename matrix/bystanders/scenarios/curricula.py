"""Curriculum learning: of sequences that the engine makes longer, and of the samples that it draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_LEAST, _MOST, _STEP = 4, 16, 4
_LENGTHENED: Any = {"stage": "03", "pinned": [{"stage": "0"}]}
# the sampler knows nothing of stages; where ranks pad their part of the weights, no two runs are the same
_DRAWN: Any = {"reference": False, "stage": "0", "precision": ("fp32",), "pinned": [{"stage": "0"}]}


def _lengthened(job: Job, lengths: Sequence[int], kind: str, **schedule: int) -> None:
    """lengths: of the steps, as the documentation's formula has them."""

    class Truncating(job.torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mlp = job.MLP()

        def forward(self, x: Any, curriculum_seqlen: int) -> Any:
            return self.mlp(x * (job.torch.arange(_MOST, device=x.device) < curriculum_seqlen))

    options = {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": _LEAST,
        "max_difficulty": _MOST,
        "schedule_type": kind,
        "schedule_config": {"difficulty_step": _STEP, **schedule},
    }
    engine = job.engine(Truncating(), curriculum_learning=options)
    for step, length in enumerate(lengths):
        known = (length,) if job.plain else ()  # DeepSpeed's engine passes it on
        job.train(engine, step, lambda batch, known=known: job.loss(engine, batch, *known))


@scenario("sequences grow linearly with curriculum learning", works_around=("curriculum_below_minimum",), **_LENGTHENED)
def lengthened(job: Job) -> None:
    _lengthened(job, (8, 12, 16, 16), "fixed_linear", total_curriculum_step=3)


@scenario("sequences grow with the root of the steps", **_LENGTHENED)
def lengthened_by_root(job: Job) -> None:
    _lengthened(job, (8, 12, 12, 16), "fixed_root", total_curriculum_step=4, root_degree=2)


def _engine(job: Job) -> Any:
    """An engine whose data loader draws samples by difficulty."""
    metric = {
        "index_to_sample_path": "none",
        "index_to_metric_path": "none",
        "difficulty_type": "value",
        "clustering_type": "single_cluster",
        "min_difficulty": 1,
        "max_difficulty": 2,
        "schedule_type": "fixed_discrete",
        "schedule_config": {"difficulty": [1, 2], "max_step": [99]},
    }
    curriculum = {
        "enabled": True,
        "data_cluster_path": str(job.tmp / "clusters"),
        "curriculum_metrics": {"length": metric},
    }
    sampling = {"enabled": True, "num_epochs": 9, "num_workers": 0, "curriculum_learning": curriculum}
    engine = job.engine(job.MLP(), data_efficiency={"enabled": True, "seed": 3, "data_sampling": sampling})
    rows = [job.batch(number) for number in range(12)]
    data = [(inputs[row].cpu(), targets[row].cpu()) for inputs, targets in rows for row in range(len(inputs))]
    engine.training_dataloader = engine.deepspeed_io(data)
    return engine


def _train(job: Job, engine: Any, steps: range) -> None:
    batches = iter(engine.training_dataloader)

    def loss(_: Any) -> Any:
        inputs, targets = next(batches)
        return job.loss(engine, (inputs.to(job.device), targets.to(job.device)))

    for step in steps:
        job.train(engine, step, loss)


@scenario("samples that a curriculum draws, with a checkpoint in between", **_DRAWN)
def drawn(job: Job) -> None:
    engine = _engine(job)
    _train(job, engine, range(2))
    job.save(engine, "two")
    _train(job, engine, range(2, 4))


@scenario("samples that a curriculum draws, from a checkpoint that was written before the first", **_DRAWN)
def drawn_from_the_start(job: Job) -> None:
    job.save(_engine(job), "none")
    engine = _engine(job)
    job.load(engine, "none")
    _train(job, engine, range(3))


@scenario("samples that a curriculum draws, resumed from a checkpoint written without dsfix", **_DRAWN)
def drawn_resumed_from_older(job: Job) -> None:
    engine = _engine(job)
    sampler = engine.training_dataloader.data_sampler
    whole = sampler.state_dict
    sampler.state_dict = lambda: {key: value for key, value in whole().items() if key != "np_rng_own_state"}
    _train(job, engine, range(2))
    job.save(engine, "two")
    engine = _engine(job)
    job.load(engine, "two")
    _train(job, engine, range(2, 4))
