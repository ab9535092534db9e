"""Modules in evaluation mode in training, and gradients in an evaluation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ALL: Any = {"stage": "3", "partitioning": "all"}
_PREFETCHED: Any = {"stage": "3", "ranks": "1"}


def _part(job: Job, frozen: bool = True) -> Any:
    """Drops half of its activations in training mode, and updates statistics that evaluation mode uses."""
    nn = job.torch.nn
    part = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5))
    return part.requires_grad_(not frozen)


def _block(job: Job) -> Any:
    nn = job.torch.nn
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())


def _head(job: Job) -> Any:
    return job.torch.nn.Linear(16, 1, bias=False)  # what pads a single number on two ranks is not initialized


def _around(job: Job, part: Any, checkpoint: Any = lambda part, x: part(x)) -> Any:
    """Gradients pass through the part to the block below."""
    model: Any = job.model(
        lambda self, x: self.head(checkpoint(self.part, self.below(x))),
        below=_block(job),
        part=part,
        head=_head(job),
    )
    model.part.eval()
    return model


def _trained(job: Job, model: Any) -> Any:
    return job.engine(model, [each for each in model.parameters() if each.requires_grad])


def _switching(job: Job) -> Any:
    """Computes something else in evaluation mode, without random numbers."""
    linear = job.torch.nn.Linear

    def switch(self: Any, x: Any) -> Any:
        return self.inner(x).tanh() * (1.0 if self.training else 0.5)

    parts = job.torch.nn.ModuleList(job.model(switch, inner=linear(16, 16)) for _ in range(4))

    def forward(self: Any, x: Any) -> Any:
        for part in self.parts:
            x = x + part(x)
        return self.head(x)

    return job.model(forward, parts=parts, head=_head(job))


def _evaluate(job: Job, engine: Any, number: int) -> None:
    with job.torch.no_grad():
        job.note(f"evaluation {number}", job.loss(engine, job.batch(1000 + number)))


@scenario("a frozen part in the middle stays in evaluation mode", pinned=[_ALL, _PREFETCHED], stage="23")
def frozen_part_in_evaluation_mode(job: Job) -> None:
    engine = _trained(job, _around(job, _part(job)))
    for step in range(5):
        job.train(engine, step)


@scenario("a trained part stays in evaluation mode", pinned=[{"stage": "3", "accumulation": "2"}], stage="3")
def trained_part_in_evaluation_mode(job: Job) -> None:
    engine = _trained(job, _around(job, _part(job, frozen=False)))
    for step in range(4):
        job.train(engine, step)


@scenario("a frozen part in evaluation mode is checkpointed, reentrantly", pinned=[_ALL], stage="3")
def reentrant_in_evaluation_mode(job: Job) -> None:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    part = _part(job)
    engine = _trained(job, _around(job, part, lambda part, x: checkpoint(part, x, use_reentrant=True)))
    for step in range(4):
        job.train(engine, step)


@scenario("a frozen part in evaluation mode is checkpointed", pinned=[_ALL], stage="3")
def checkpointed_in_evaluation_mode(job: Job) -> None:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    part = _part(job)
    engine = _trained(job, _around(job, part, lambda part, x: checkpoint(part, x, use_reentrant=False)))
    for step in range(4):
        job.train(engine, step)


@scenario(
    "the input passes through a frozen part in evaluation mode, which needs no gradient", pinned=[_ALL], stage="3"
)
def encoder_in_evaluation_mode(job: Job) -> None:
    model = job.model(
        lambda self, x: self.head(self.above(self.part(x))),
        part=job.torch.nn.Sequential(_part(job), _part(job)),
        above=_block(job),
        head=_head(job),
    )
    engine = _trained(job, model)
    for step in range(5):
        engine.train()
        engine.module.part.eval()
        job.train(engine, step)
        engine.eval()
        _evaluate(job, engine, step)


@scenario("the parts go into evaluation mode one after the other, and back", pinned=[_ALL, _PREFETCHED], stage="3")
def into_evaluation_mode_and_back(job: Job) -> None:
    engine = job.engine(_switching(job))
    for step, number in enumerate((0, 0, 0, 1, 2, 2, 2, 4, 4, 0, 0, 1)):
        for part in engine.module.parts:
            part.train()
        for part in list(engine.module.parts)[:number]:
            part.eval()
        job.train(engine, step)


@scenario("the whole model is trained in evaluation mode, and evaluated", pinned=[_ALL], stage="3")
def whole_in_evaluation_mode(job: Job) -> None:
    engine = job.engine(_switching(job))
    engine.eval()
    for step in range(5):
        _evaluate(job, engine, step)
        job.train(engine, step)


@scenario("an evaluation between steps needs the input's gradient", pinned=[_ALL, _PREFETCHED], stage="3")
def input_gradients_in_evaluation(job: Job) -> None:
    engine = job.engine(_switching(job))
    for step in range(6):
        engine.train()
        job.train(engine, step)
        engine.eval()
        for number in range(2 if step > 2 else 0):
            inputs, targets = job.batch(1000 + number)
            value = job.loss(engine, (inputs.requires_grad_(), targets))
            job.note(f"step {step}: gradient {number}", job.torch.autograd.grad(value, [inputs])[0].float())


@scenario("the targets are the model's own in evaluation mode, of a part of its layers", pinned=[_ALL], stage="3")
def own_teacher_in_evaluation_mode(job: Job) -> None:
    engine = job.engine(_switching(job))
    mse = job.torch.nn.functional.mse_loss

    def loss(batch: Any) -> Any:
        learned = engine(batch[0]).float()
        engine.eval()
        with job.torch.no_grad():
            taught = engine(batch[0]).float()
        return mse(learned, 0.5 * (taught + batch[1]))

    for step in range(5):
        engine.train()
        job.train(engine, step, loss)
