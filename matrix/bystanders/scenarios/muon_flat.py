"""DeepSpeed's Muon with biases, in all engines: ZeRO gives its step flat partitions, the others the matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {"reference": False, "stage": "123", "optimizer": ("SGD",)}


def _trained(job: Job, params: dict[str, Any], resumed: bool = False) -> None:
    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use

    def start() -> Any:
        model = job.MLP()
        # torch_adam: later releases would compile an operator
        muon = {"type": "Muon", "params": {"torch_adam": True, **params}}
        whole = {**space.config(job.setting), "optimizer": muon}
        # with reduce_scatter, ZeRO-1 and ZeRO-2 have a bug through 0.19.2, and ZeRO-3 refuses Muon
        whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}
        return job._lab.initialize(model, whole, model_parameters=list(model.parameters()))

    engine = start()
    for step in range(3):
        if resumed and step == 2:
            job.save(engine, "two")
            engine = start()
            job.load(engine, "two")
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.bits(f"step {step}: skipped steps", int(engine.skipped_steps))
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario(
    "Muon, and Adam for the biases",
    works_around=("muon_reduce_scatter",),
    pinned=[{"stage": "1"}, {"stage": "2", "ranks": "4"}, {"stage": "2", "offload": "optimizer", "precision": "bf16"}],
    offload=("none",),
    **_FITS,
)
def muon_and_adam(job: Job) -> None:
    _trained(job, {"muon_lr": 0.02, "adam_lr": 0.01, "momentum": 0.9, "weight_decay": 0.01})


# in half precision a resumed job fails, or goes on with another momentum
@scenario("Muon resumes from a checkpoint", pinned=[{"stage": "2"}], precision=("fp32",), **_FITS)
def muon_resumed(job: Job) -> None:
    _trained(job, {"lr": 0.02, "weight_decay": 0.0}, resumed=True)
