"""Half precision with the optimizer on the CPU, in sizes that need no padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_OFFLOADED: Any = {"stage": "3", "offload": ("optimizer", "optimizer, param"), "precision": ("bf16", "fp16")}
_PINNED = {"stage": "3", "offload": "optimizer", "precision": "bf16", "accumulation": "2", "clipping": "on"}


@scenario("linear layers, one of them frozen, in half precision with offload", pinned=[_PINNED], **_OFFLOADED)
def half_offloaded(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    frozen, *trained = (torch.nn.Linear(16, 16) for _ in range(3))
    frozen.requires_grad_(False)
    layers = [trained[0], frozen, torch.nn.Tanh(), trained[1], torch.nn.Linear(16, 2, bias=False)]
    model = torch.nn.Sequential(*layers)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    for step in range(3):
        job.train(engine, step)
