"""DeepSpeed's MoE layer with two experts per token, or with one and room for all, as a release makes it by default."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_EXPERTS = 4
_FITS: Any = {
    "stage": "012",
    "offload": ("none",),
    "precision": ("fp32", "bf16"),
    "partitioning": ("parameters persist",),
    "ranks": ("2", "4"),
    "accumulation": ("1",),
    "reference": False,
}


def _passed(job: Job, k: int, ep_size: int, **options: Any) -> None:
    """Passes through the layer and back to its inputs, in training and in evaluation; the weights stay as they are."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # parts of the layer are compiled on first use
    make = importlib.import_module("deepspeed.moe.layer").MoE
    layer = make(16, nn.Linear(16, 16), _EXPERTS, ep_size, k=k, min_capacity=1, **options)

    def forward(self: Any, x: Any) -> Any:
        mixed, loss, counts = self.moe(self.below(x).tanh())
        return self.head(mixed), loss, counts

    model = job.model(forward, below=nn.Linear(16, 16), moe=layer, head=nn.Linear(16, 1))
    parameters: Any = list(model.parameters())
    if job.stage:
        split = importlib.import_module("deepspeed.moe.utils").split_params_into_different_moe_groups_for_optimizer
        parameters = split({"params": parameters, "name": "all"})
    engine = job.engine(model, parameters)
    for number in range(4):
        engine.train(number < 2)
        inputs = job.batch(number)[0].requires_grad_()
        output, loss, counts = engine(inputs)
        job.bits(f"pass {number}: output", output)
        job.bits(f"pass {number}: the router's loss", loss)
        job.bits(f"pass {number}: tokens by expert", counts)
        job.bits(f"pass {number}: gradient", job.torch.autograd.grad(output.float().sum() + loss, inputs)[0])


@scenario("top-2 routing with noise and too little capacity", pinned=[{"stage": "1"}], **_FITS)
def two_of_experts(job: Job) -> None:
    _passed(job, 2, 1, capacity_factor=0.5)


@scenario("top-2 routing with noise to experts on two ranks", pinned=[{"stage": "2"}], **_FITS)
def two_of_experts_on_two_ranks(job: Job) -> None:
    _passed(job, 2, 2, capacity_factor=0.5)


@scenario("top-1 routing to experts on two ranks, no token is dropped", pinned=[{"stage": "0"}], **_FITS)
def one_of_experts_undropped(job: Job) -> None:
    _passed(job, 1, 2, drop_tokens=False)
