"""The host never waits for the device: no throughput timer, batches copied before, losses read at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_NO_TIMER: dict[str, Any] = {"throughput": {"enabled": False}}


@scenario(
    "nothing makes the host wait between a step and the next forward pass",
    pinned=[
        {"stage": "3", "precision": "bf16", "accumulation": "2", "partitioning": "all"},
        {"stage": "3", "clipping": "on"},
        {"stage": "3", "ranks": "1", "partitioning": "all"},
    ],
)
def not_waited_for(job: Job) -> None:
    engine = job.engine(job.MLP(), timers=_NO_TIMER)
    losses = []
    for inputs, targets in [batch for step in range(4) for batch in job.batches(step)]:
        # not mse_loss, whose backward pass makes the host wait on the emulated device
        loss = (engine(inputs).float() - targets).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    for number, loss in enumerate(losses):
        job.note(f"loss of micro-batch {number}", loss)
    job.look(engine, "at the end")
