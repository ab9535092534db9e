"""Jobs written to break patches: parameters frozen within a step, gradients modified by the script."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_SEVERAL = ("2", "3")
_FP32_SUMS = [
    {"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": accumulation} for accumulation in ("1", "2")
]


@scenario(
    "one block is frozen in each step's first micro-batch, another in its last, a third in every second step",
    accumulation=_SEVERAL,
    stage="3",
    offload=("optimizer", "optimizer, param"),
    pinned=[{"stage": "3", "offload": "optimizer", "accumulation": "2"}],
)
def frozen_by_micro_batches(job: Job) -> None:
    engine = job.engine(job.MLP(depth=4))
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            blocks = engine.module.blocks
            blocks[0].requires_grad_(micro > 0)
            blocks[1].requires_grad_(micro + 1 < job.accumulation)
            blocks[2].requires_grad_(step % 2 == 0)
            value = job.loss(engine, batch)
            engine.backward(value)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


def _written_to(job: Job, write: Callable[[Any], None]) -> None:
    """Training in which `write` is called before each step of the engine."""
    engine = job.engine(job.MLP())
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            value = job.loss(engine, batch)
            engine.backward(value)
            write(engine)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


@scenario(
    "gradients are clipped with torch before the step",
    works_around=("clip_grad_norm_type", "fp32_clipping_inverted"),
    stage="0",
    precision=("fp32", "bf16"),
    pinned=_FP32_SUMS,
)
def clipped_by_torch(job: Job) -> None:
    def clip(engine: Any) -> None:
        if not engine.is_gradient_accumulation_boundary():
            return
        if job.plain:
            for parameter in engine.module.parameters():
                engine._average(parameter)
        job.torch.nn.utils.clip_grad_norm_(engine.module.parameters(), 0.2)

    _written_to(job, clip)


@scenario("some rows are not trained: their gradients are set to zero", stage="0", pinned=_FP32_SUMS)
def rows_masked(job: Job) -> None:
    def mask(engine: Any) -> None:
        for parameter in engine.module.blocks[0].parameters():
            if parameter.grad is not None:
                parameter.grad[:4] = 0

    _written_to(job, mask)


@scenario("a bad batch is discarded with module.zero_grad(set_to_none=False)", stage="0", pinned=_FP32_SUMS[:1])
def discarded_in_place(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        engine.backward(job.loss(engine, job.batch(100 + step)))
        engine.module.zero_grad(set_to_none=False)
        job.train(engine, step)


@scenario(
    "a gradient penalty (degree one) on the inputs, where DeepSpeed divides the gradient and not the penalty",
    stage="1",
    precision=("bf16, fp32 accumulation",),  # elsewhere a differentiated output ends ZeRO's backward pass early
    accumulation=_SEVERAL,
    pinned=[{"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": "3", "ranks": "1"}],
)
def gradient_norm_penalty(job: Job) -> None:
    torch = job.torch
    engine = job.engine(job.MLP())
    for step in range(4):
        for inputs, targets in job.batches(step):
            output = engine(inputs.requires_grad_()).float()
            (gradient,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
            loss = torch.nn.functional.mse_loss(output, targets)  # not noted: it includes the divided gradient
            engine.backward(loss + gradient.float().norm(dim=1).mean())
            engine.step()
        job.look(engine, f"step {step}")
