"""A pipeline's module that is called before it has an engine, whose config has another interval of checkpointing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import pipelines

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("a pipeline's module is called before it has an engine", pinned=[{"accumulation": "2"}], **pipelines._FITS)
def pipeline_called_before(job: Job) -> None:
    torch = job.torch
    calls: list[int] = []

    class Counting(torch.nn.Sequential):  # type: ignore[name-defined,misc]
        """Is not to be checkpointed: counts its calls."""

        def forward(self, inputs: Any) -> Any:
            calls.append(1)
            return super().forward(inputs)

    model = job.MLP(depth=3)
    layers = [*model.blocks, model.head]
    layers[2] = Counting(*layers[2])
    if job.plain:
        engine = job.engine(torch.nn.Sequential(*layers))
    else:
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        module = importlib.import_module("deepspeed.pipe").PipelineModule(
            layers=layers,
            num_stages=1,
            loss_fn=loss,
            partition_method="uniform",
            activation_checkpoint_interval=2,
            checkpointable_layers=["Sequential"],
        )
        with torch.no_grad():
            module(torch.zeros(4, 16, device=job.device))
        calls.clear()
        engine = job.engine(module, pipeline={"activation_checkpoint_interval": 1})
    for step in range(pipelines._STEPS):
        pipelines._step(job, engine, step)
        job.note(f"step {step}: calls of a layer that is not checkpointed", len(calls))
