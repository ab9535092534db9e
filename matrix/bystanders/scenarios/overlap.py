"""ZeRO-1 and ZeRO-2 with overlap_comm and buckets smaller than the model, and than some of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_BUCKETS: Any = {"stage": "12", "overlap_comm": ("true",), "buckets": ("small",)}
_PINNED: Any = [
    {"stage": stage, "overlap_comm": "true", "buckets": "small", "accumulation": "2", "ranks": "2"} for stage in "21"
]


def _model(job: Job) -> Any:
    """Matrices of 256 numbers, which fit into a bucket of 300, and two of 512, which do not."""
    nn = job.torch.nn
    widths = (16, 16, 32, 16, 16, 16)
    layers = (nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.Tanh()) for a, b in zip(widths, widths[1:]))
    return nn.Sequential(*layers, nn.Linear(16, 1))


@scenario("gradients fill several buckets, and two are larger than a bucket", pinned=_PINNED, **_BUCKETS)
def larger_than_a_bucket(job: Job) -> None:
    engine = job.engine(_model(job))
    for step in range(4):
        job.train(engine, step)


@scenario("a frozen matrix is larger than a bucket, and evaluation between steps", **_BUCKETS)
def frozen_larger_than_a_bucket(job: Job) -> None:
    model = _model(job)
    model[1][0].weight.requires_grad_(False)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    for step in range(4):
        job.train(engine, step)
        with job.torch.no_grad():
            job.note(f"evaluation {step}", job.loss(engine, job.batch(1000 + step)))
