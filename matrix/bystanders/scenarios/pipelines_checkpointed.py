"""DeepSpeed's pipeline of two stages with activation checkpointing, compared with plain PyTorch without it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import pipelines

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {**pipelines._FITS, "ranks": ("2",)}


def _trained(job: Job, interval: int = 0, non_reentrant: bool = False, in_place: bool = False, **config: Any) -> None:
    """interval, non_reentrant: of the module; in_place: its first layer changes its input and is not checkpointed."""
    torch = job.torch
    model = job.MLP(depth=3)
    layers = [*model.blocks, model.head]

    class InPlace(torch.nn.Sequential):  # type: ignore[name-defined,misc]
        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs.mul_(2))

    if in_place:
        layers[0] = InPlace(*layers[0])
    if job.plain:
        engine = job.engine(torch.nn.Sequential(*layers))
    else:
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        options: dict[str, Any] = {"activation_checkpoint_interval": interval}
        if in_place:
            options["checkpointable_layers"] = ["Sequential", "Linear"]
        if non_reentrant:
            checkpointing = importlib.import_module("deepspeed.runtime.activation_checkpointing.checkpointing")
            options["activation_checkpoint_func"] = checkpointing.non_reentrant_checkpoint
        module = importlib.import_module("deepspeed.pipe").PipelineModule(
            layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform", **options
        )
        engine = job.engine(module, **config)
    for step in range(pipelines._STEPS):
        pipelines._step(job, engine, step)


@scenario("a pipeline whose config asks for checkpointing", pinned=[{"accumulation": "2"}],
    works_around=("pipeline_checkpoint_first_layers",), **_FITS)  # fmt: skip
def pipeline_checkpointed_by_config(job: Job) -> None:
    _trained(job, pipeline={"activation_checkpoint_interval": 1})


@scenario("a pipeline whose module checkpoints without reentering", pinned=[{"accumulation": "2"}],
    works_around=("pipeline_checkpoint_first_layers",), **_FITS)  # fmt: skip
def pipeline_checkpointed_without_reentering(job: Job) -> None:
    _trained(job, 1, non_reentrant=True)


@scenario(
    "a pipeline whose module checkpoints all layers but the first, which works in place",
    pinned=[{"accumulation": "2"}],
    **_FITS,
)
def pipeline_checkpointed_after_the_first(job: Job) -> None:
    _trained(job, 1, in_place=True)


@scenario("a pipeline whose module asks for checkpointing", pinned=[{"accumulation": "2"}], **_FITS)
def pipeline_checkpointed_by_module(job: Job) -> None:
    _trained(job, 1)
