"""A pipeline that is evaluated between two steps, with as many micro-batches as it trains with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import pipelines

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _evaluated(job: Job, **options: Any) -> None:
    engine = pipelines._pipeline(job, {}, 2)
    for step in range(3):
        pipelines._step(job, engine, step)
        source = iter([pipelines._batch(job, 100 + number) for number in range(job.accumulation + 2)])
        if job.plain:
            with job.torch.no_grad():
                losses = [job.loss(engine, next(source)) for _ in range(job.accumulation)]
            value: Any = sum(losses) / len(losses)
        else:
            value = engine.eval_batch(source, **options)
        job.note(f"evaluation {step}", value.reshape(-1))
        job.note(f"batches left {step}", str(len(list(source))))


@scenario("a pipeline is evaluated after each step", **pipelines._FITS)
def pipeline_evaluated(job: Job) -> None:
    _evaluated(job)


@scenario("a pipeline is evaluated, with its number of micro-batches given",
    works_around=("pipeline_eval_micro_batches",), **pipelines._FITS)  # fmt: skip
def pipeline_evaluated_by_number(job: Job) -> None:
    _evaluated(job, num_micro_batches=job.accumulation)
