"""DeepSpeed's own torch_autocast, whose parameters stay in fp32 and are gathered in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

# releases before 0.17.2 gather in fp32; plain PyTorch is in fp32 throughout
_HERE: Any = {"stage": "3", "precision": ("fp32",), "reference": False}
_BF16 = {"enabled": True, "dtype": "bfloat16"}


@scenario("linear layers, ZeRO-3 with torch_autocast in bf16", pinned=[{"stage": "3", "accumulation": "2"}], **_HERE)
def autocast_in_bf16(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    # all of one dtype, which 0.17.2 needs, and nothing of an odd size: nothing initializes its padding
    layers = [torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1, bias=False)]
    engine = job.engine(torch.nn.Sequential(*layers), torch_autocast=_BF16)
    for step in range(3):
        job.train(engine, step)
