"""DeepSpeed's pipeline of two stages that share a layer, compared with plain PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import pipelines, pipelines_checkpointed

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("a pipeline of two stages that share a layer", pinned=[{"accumulation": "2"}], **pipelines_checkpointed._FITS)
def pipeline_with_a_tied_layer(job: Job) -> None:
    torch = job.torch

    class Shared(torch.nn.Linear):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(16, 16, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) / 4)

    model = job.MLP(depth=1)
    block, head = model.blocks[0], model.head
    if job.plain:
        shared = Shared()
        engine = job.engine(torch.nn.Sequential(shared, block, shared, head))
    else:
        pipe = importlib.import_module("deepspeed.pipe")
        tied = pipe.TiedLayerSpec("shared", Shared)
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        layers = [tied, block, tied, head]
        engine = job.engine(pipe.PipelineModule(layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform"))
    for step in range(pipelines._STEPS):
        numbers = range(step * job.accumulation, (step + 1) * job.accumulation)
        batches = [pipelines._batch(job, number) for number in numbers]
        if job.plain:
            for batch in batches:
                engine.backward(job.loss(engine, batch))
                engine.step()
        else:
            engine.train_batch(data_iter=iter(batches))
        for name, parameter in job.parameters(engine).items():
            job.note(f"step {step}: {name.replace('tied_modules.shared', '0')}", parameter)
