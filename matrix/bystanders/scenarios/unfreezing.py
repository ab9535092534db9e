"""Temporarily frozen parameters combined with checkpoints, custom optimizers and late freezing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ONE_RANK = [{"precision": precision, "optimizer": "AdamW", "ranks": "1"} for precision in ("bf16", "fp16")]


def _train_only(engine: Any, *parts: str) -> None:
    for name, parameter in engine.module.named_parameters():
        parameter.requires_grad_(name.startswith(parts))


def _by_turns(job: Job, engine: Any, step: int) -> None:
    _train_only(engine, ("first", "second")[step % 2])
    job.train(engine, step, lambda batch: job.loss(engine, batch, True))


@scenario("two halves are trained alternately, and the job is resumed between two steps", pinned=_ONE_RANK)
def by_turns_resumed(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        _by_turns(job, engine, step)
    job.save(engine, "half")
    _by_turns(job, engine, 3)
    job.load(engine, "half")
    for step in range(3, 6):
        _by_turns(job, engine, step)


@scenario(
    "two halves are trained alternately by an optimizer that needs every gradient", stage="0", pinned=_ONE_RANK[:1]
)
def by_turns_without_none(job: Job) -> None:
    torch = job.torch

    class Plain(torch.optim.SGD):  # type: ignore[misc,name-defined,unused-ignore]
        """A step of SGD that requires a gradient for every parameter."""

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for parameter in (each for group in self.param_groups for each in group["params"]):
                    if job.plain and parameter.grad is None:
                        continue
                    parameter.sub_(parameter.grad.to(parameter.dtype), alpha=0.1)

    engine = job.engine(job.Branches(), optimizer=lambda parameters: Plain(parameters, lr=0.1))
    for step in range(6):
        _by_turns(job, engine, step)


@scenario(
    "frozen between the backward pass and the step, which still runs",
    stage="0",
    accumulation="1",
    pinned=_ONE_RANK,
)
def frozen_before_the_step(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):

        def backward(loss: Any) -> None:
            engine.backward(loss)
            engine.module.blocks[0].requires_grad_(False)

        engine.module.requires_grad_(True)
        job.train(engine, step, backward=backward)


@scenario("frozen from the start, written to by the script, then trained", stage="0", pinned=_ONE_RANK)
def written_then_thawed(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    engine = job.engine(model)
    for step in range(5):
        if step == 2:
            with job.torch.no_grad():
                for parameter in engine.module.blocks[0].parameters():
                    parameter.mul_(0.5)
        if step == 3:
            engine.module.requires_grad_(True)
        job.train(engine, step)
