"""DeepSpeed's Muon, with no matrix shared by two ranks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _trained(job: Job) -> None:
    """Two matrices of equal size, one for each of two ranks; the scale brings each rank's gradients near 40000."""
    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    linear = functools.partial(torch.nn.Linear, 16, bias=False)
    torch.manual_seed(0)
    forward = lambda self, x: self.head(self.second(self.first(x).tanh()).tanh())  # noqa: E731
    model = job.model(forward, first=linear(16), second=linear(16), head=linear(1))
    inputs, targets = _batch()
    loss: Any = torch.nn.functional.mse_loss(model(inputs), targets)
    largest = max(float(each.abs().max()) for each in torch.autograd.grad(loss, list(model.parameters())))
    batch = inputs.to(job.device, job.dtype), targets.to(job.device)
    muon = {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.0, "torch_adam": True}}
    whole: dict[str, Any] = {**space.config(job.setting), "optimizer": muon}
    if job.setting["precision"] == "fp16":
        whole["fp16"] = {"enabled": True, "loss_scale": 40000 / largest}
    engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
    for step in range(3):
        for _ in range(job.accumulation):
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.bits(f"step {step}: skipped steps", int(engine.skipped_steps))
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


def _batch() -> Any:
    """One repeated row, so that intermediate values are smaller than the gradients; the same on all ranks."""
    from dsfix.lab.models import regression_batch

    inputs, targets = regression_batch(0, 0)
    return inputs[:1].repeat(32, 1), targets[:1].repeat(32, 1)


@scenario(
    "Muon in fp16 with gradients whose sum over the ranks, but not their mean, overflows fp16",
    reference=False,
    stage="12",
    offload=("none",),
    precision=("fp16", "bf16"),
    ranks=("2",),
    accumulation=("1", "2"),
    optimizer=("SGD",),
    pinned=[{"stage": "1", "precision": "fp16"}],
)
def muon_of_large_gradients(job: Job) -> None:
    _trained(job)
