"""Pipelines whose stages pass tuples of tensors: floats with gradients, indices, masks; one stage per rank."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_WIDTH, _STAGES = 16, 4
_FITS: Any = {
    "stage": "01",
    "offload": ("none",),
    "precision": ("fp32", "bf16"),
    "accumulation": ("2", "3"),
    "clipping": ("off",),
    "optimizer": ("SGD", "AdamW"),
    "partitioning": ("parameters persist",),
}


def _trained(
    job: Job, name: str, rows: Any = (4,), stages: str = "PipelineModule", recomputed: bool = False, **options: Any
) -> None:
    """name: what the stages pass, a key of _PASSED. rows: of the micro-batches in turn. stages: the class's name.

    options: of the PipelineModule.
    """
    config: Any = {"pipeline": {"activation_checkpoint_interval": 1}} if recomputed else {}
    nn = job.torch.nn
    step_of, head_of, start = _PASSED[name]

    def layer(number: int) -> Any:
        job.torch.manual_seed(number)
        parts = {"body": nn.Linear(_WIDTH, _WIDTH), "other": nn.Linear(_WIDTH, _WIDTH)}
        return job.model(step_of, **parts) if number < _STAGES - 1 else job.model(head_of, head=nn.Linear(_WIDTH, 1))

    layers = [layer(number) for number in range(_STAGES)]
    if job.plain:
        engine = job.engine(nn.Sequential(*layers))
    else:
        loss = lambda outputs, targets: nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        module = importlib.import_module("deepspeed.pipe").PipelineModule
        if stages != module.__name__:
            module = type(stages, (module,), {})
        known = inspect.signature(importlib.import_module("deepspeed.pipe").PipelineModule).parameters
        options = {key: value for key, value in options.items() if key in known}
        whole: Any = {"layers": layers, "num_stages": job.world_size, "loss_fn": loss, "partition_method": "uniform"}
        engine = job.engine(module(**whole, **options), **config)
    for step in range(3):
        numbers = range(step * job.accumulation, (step + 1) * job.accumulation)
        # the same batches on all ranks, so that plain PyTorch's average over the ranks is that of one
        batches = [_batch(job, number, rows[number % len(rows)], start) for number in numbers]
        if job.plain:
            for batch in batches:
                engine.backward(job.loss(engine, batch))
                engine.step()
        else:
            engine.train_batch(data_iter=iter(batches))
        for label, parameter in job.parameters(engine).items():
            job.note(f"step {step}: {label}", parameter)


def _batch(job: Job, number: int, rows: int, start: Any) -> Any:
    from dsfix.lab.models import regression_batch

    x, targets = regression_batch(0, number, size=rows)
    y, _ = regression_batch(1, number, size=rows)
    indices = job.torch.arange(_WIDTH).flip(0).repeat(rows, 1)
    given = start(x.to(job.device, job.dtype), indices.to(job.device), y.to(job.device, job.dtype))
    return given, targets.to(job.device)


# (a stage in the middle, the last one, the batch's inputs from two float tensors and indices)
_PASSED: Any = {
    "indices": (
        lambda self, given: (self.body(given[0]).tanh() + self.other(given[0].gather(1, given[1])), given[1]),
        lambda self, given: self.head(given[0].gather(1, given[1])),
        lambda x, indices, y: (x, indices),
    ),
    "floats, indices": (
        lambda self, given: (self.body(given[0]).tanh() + given[1].gather(1, given[2]), self.other(given[1]), given[2]),
        lambda self, given: self.head(given[0] + given[1].gather(1, given[2])),
        lambda x, indices, y: (x, y, indices),
    ),
    "float, indices, float": (
        lambda self, given: (self.body(given[0]).tanh() + given[2].gather(1, given[1]), given[1], self.other(given[2])),
        lambda self, given: self.head(given[0] + given[2].gather(1, given[1])),
        lambda x, indices, y: (x, indices, y),
    ),
    "mask": (
        lambda self, given: (self.body(given[0]).tanh() + self.other(given[0]) * given[1].to(given[0].dtype), given[1]),
        lambda self, given: self.head(given[0] * given[1].to(given[0].dtype)),
        lambda x, indices, y: (x, y > 0),
    ),
    "float mask": (
        lambda self, given: (self.body(given[0]).tanh() + self.other(given[0]) * given[1], given[1]),
        lambda self, given: self.head(given[0] * given[1]),
        lambda x, indices, y: (x, (y > 0).to(x.dtype)),
    ),
}


@scenario(
    "the stages of a pipeline pass a float tensor and indices",
    pinned=[{"ranks": "4", "accumulation": "2"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_indices(job: Job) -> None:
    _trained(job, "indices")


@scenario(
    "the stages of a pipeline pass two float tensors, which both have gradients, and indices",
    works_around=("pipeline_receive_buffer_dtype",),
    pinned=[{"ranks": "4", "stage": "1", "accumulation": "2"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_two_floats(job: Job) -> None:
    _trained(job, "floats, indices")


@scenario("two stages pass two float tensors, and indices between them", ranks=("2",), **_FITS)
def pipeline_indices_between(job: Job) -> None:
    _trained(job, "float, indices, float")


@scenario(
    "the stages of a pipeline pass a boolean mask, as DeepSpeed's GPT-2 does",
    works_around=("pipeline_float_without_gradient",),
    pinned=[{"ranks": "4", "accumulation": "2"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_mask(job: Job) -> None:
    _trained(job, "mask", stages="GPT2ModelPipe")


@scenario(
    "the micro-batches of a pipeline have different sizes",
    pinned=[{"ranks": "4", "accumulation": "3"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_sizes(job: Job) -> None:
    _trained(job, "floats, indices", rows=(4, 2, 6), dynamic_shape=True)


@scenario(
    "the stages of a pipeline compute their forward pass again, and pass a float mask, which gets a gradient",
    pinned=[{"ranks": "2", "accumulation": "2"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_float_mask(job: Job) -> None:
    _trained(job, "float mask", recomputed=True, activation_checkpoint_interval=1)
