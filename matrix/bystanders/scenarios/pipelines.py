"""DeepSpeed's pipeline of two stages, compared with plain PyTorch holding the whole model on each rank."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_STEPS = 3
_FITS: Any = {
    "stage": "01",
    "offload": ("none",),
    "ranks": ("2", "4"),
    "precision": ("fp32", "bf16"),
    "accumulation": ("2", "3"),
    "optimizer": ("SGD", "AdamW"),
    "partitioning": ("parameters persist",),
}


def _pipeline(job: Job, config: dict[str, Any], stages: int, seed: int = 0) -> Any:
    model = job.MLP(depth=3, seed=seed)
    layers = [*model.blocks, model.head]
    if job.plain:
        return job.engine(job.torch.nn.Sequential(*layers))
    loss = lambda outputs, targets: job.torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
    module = importlib.import_module("deepspeed.pipe").PipelineModule(
        layers=layers, num_stages=stages, loss_fn=loss, partition_method="uniform"
    )
    return job.engine(module, **config)


def _step(job: Job, engine: Any, step: int) -> None:
    """The same batches for each replica of the pipeline, so that an average over the ranks is theirs as well."""
    batches = [_batch(job, step * job.accumulation + micro) for micro in range(job.accumulation)]
    if job.plain:
        for batch in batches:
            engine.backward(job.loss(engine, batch))
            engine.step()
    else:
        engine.train_batch(data_iter=iter(batches))
    for name, parameter in job.parameters(engine).items():
        job.note(f"step {step}: {name}", parameter)


def _batch(job: Job, number: int) -> Any:
    from dsfix.lab.models import regression_batch

    inputs, targets = regression_batch(0, number)
    return inputs.to(job.device, job.dtype), targets.to(job.device)


def _trained(job: Job, resumed: int = 0, stages: int = 2, **config: Any) -> None:
    engine = _pipeline(job, config, stages)
    for step in range(_STEPS):
        if resumed and step == resumed:
            job.save(engine, "resumed")
            engine = _pipeline(job, config, stages, seed=1)
            job.load(engine, "resumed")
        _step(job, engine, step)


@scenario("a plain pipeline", pinned=[{"accumulation": "2"}], **_FITS)
def pipeline(job: Job) -> None:
    _trained(job)


@scenario("a pipeline with one stage prints its timers at each step", pinned=[{"accumulation": "2"}],
    works_around=("pipeline_steps_per_print", "pipeline_steps_per_print_timers"), **_FITS)  # fmt: skip
def pipeline_timed(job: Job) -> None:
    _trained(job, stages=1, wall_clock_breakdown=True, steps_per_print=1)


@scenario(
    "a pipeline with one stage measures time but prints no timers",
    pinned=[{"stage": "1", "accumulation": "2"}],
    **_FITS,
)
def pipeline_measured(job: Job) -> None:
    _trained(job, stages=1, wall_clock_breakdown=True, steps_per_print=1000)


@scenario("a pipeline resumes from a checkpoint", pinned=[{"accumulation": "2", "optimizer": "AdamW"}], **_FITS)
def pipeline_resumed(job: Job) -> None:
    _trained(job, resumed=2)
