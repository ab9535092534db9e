"""DeepSpeed's own gradient checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("blocks are checkpointed by deepspeed.checkpointing.non_reentrant_checkpoint", stage="03")
def non_reentrant_of_deepspeed(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(2)]

    def checkpoint(block: Any, x: Any) -> Any:
        if job.plain:
            return block(x)
        import deepspeed  # type: ignore[import-not-found,unused-ignore]

        return deepspeed.checkpointing.non_reentrant_checkpoint(block, x)

    def forward(self: Any, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x)
        return self.head(x)

    model = job.model(forward, blocks=torch.nn.ModuleList(blocks), head=torch.nn.Linear(16, 1, bias=False))
    engine = job.engine(model)
    for step in range(4):
        job.train(engine, step)
