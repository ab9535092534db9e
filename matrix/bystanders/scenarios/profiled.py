"""Jobs of which the flops profiler counts a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_COUNTED = 1


# the counts of a step's second micro-batch are wrong through 0.19.5
@scenario(
    "the flops profiler counts the second step",
    pinned=[{"stage": "0"}, {"stage": "3", "partitioning": "all"}],
    stage="013",
    precision=("fp32", "bf16"),
    accumulation=("1",),
)
def profiled(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    parts = {name: torch.nn.Linear(16, size) for name, size in (("below", 16), ("within", 16), ("head", 1))}

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x).tanh()[None]
        x = x + torch.nn.functional.scaled_dot_product_attention(x, x, x)
        x = torch.bmm(x, x.transpose(1, 2)) @ self.within(x)
        return self.head(x.tanh())[0]

    file = str(job.tmp / "profile")
    options = {"enabled": True, "profile_step": _COUNTED, "output_file": file}
    engine = job.engine(job.model(forward, **parts), flops_profiler=options)

    def loss(batch: Any) -> Any:
        value = job.loss(engine, batch)
        if step == _COUNTED and job.rank == 0 and not job.plain:
            job.bits("flops", int(engine.flops_profiler.get_total_flops()))
        return value

    for step in range(4):
        job.train(engine, step, loss)
