"""DeepSpeed's Muon without ZeRO, in half precision, on gradients whose singular values are all far from rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_PARAMS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}


def _plain(job: Job) -> Any:
    from dsfix.audit import muon

    class Muon(job.torch.optim.Optimizer):  # type: ignore[name-defined,misc]
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    state, gradient = self.state[parameter], parameter.grad
                    moved = state.get("momentum", job.torch.zeros_like(gradient)).lerp(gradient, 1 - group["momentum"])
                    state["momentum"] = moved
                    blend = gradient.lerp(moved, group["momentum"])
                    update = muon.orthogonalized(blend, job.torch.bfloat16).to(parameter.dtype)
                    with job.torch.no_grad():
                        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)

    return lambda given: Muon(given, dict(_PARAMS))


@scenario(
    "Muon without ZeRO, in half precision",
    pinned=[{"precision": "bf16"}, {"precision": "fp16", "accumulation": "2", "clipping": "on"}],
    stage="0",
    precision=("bf16", "fp16"),
    optimizer=("SGD",),
)
def muon_alone(job: Job) -> None:
    from dsfix.lab.models import regression_batch

    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    torch.manual_seed(0)
    model = job.model(lambda self, x: self.only(x), only=torch.nn.Linear(16, 16, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(job._held))
    if job.plain:
        engine = job.engine(model, optimizer=_plain(job))
    else:
        # torch_adam: later releases would compile an operator
        muon = {"type": "Muon", "params": {"torch_adam": True, **_PARAMS}}
        whole = {**space.config(job.setting), "optimizer": muon}
        initial = job._whole(model)
        engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
        job._initial[id(engine)] = initial

    def loss(batch: Any) -> Any:
        number = next(numbers)
        inputs, targets = (regression_batch(job.rank, each, size=32)[0].to(job.device) for each in (number, number + 1))
        return torch.nn.functional.mse_loss(engine(inputs.to(job.dtype)).float(), targets)

    numbers = iter(range(100))
    for step in range(3):
        job.train(engine, step, loss)
