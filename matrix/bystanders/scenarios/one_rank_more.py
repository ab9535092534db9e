"""Rank 0 does more than the other rank, nothing of which is a collective: a picture, a log, a file, another attempt.

With ZeRO-3, where a forward pass more is a collective, only what needs none: all parameters stay gathered, and it
begins when the order of the modules is recorded.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import Any

from matrix.bystanders.scenario import Batch, Job, scenario, settings

_HERE: Any = {"ranks": ("2",), "precision": ("fp32", "bf16"), "partitioning": ("parameters persist",)}
_EACH: Any = {**_HERE, "stage": "012"}
_BEGINS, _STEPS = 3, 7


def _train(job: Job, engine: Any, loss: Callable[[Batch, bool], Any], after: Callable[[], Any] | None = None) -> None:
    """loss: of a batch, and whether this rank does more; after: what rank 0 does after each step."""
    for step in range(_STEPS):
        more = job.rank == 0 and step >= _BEGINS
        job.train(engine, step, lambda batch, more=more: loss(batch, more))
        if more and after:
            after()


def _ordinary(job: Job, engine: Any) -> Callable[[Batch, bool], Any]:
    return lambda batch, more: job.loss(engine, batch)


@scenario("rank 0 alone takes the gradient of its inputs before its backward pass, for a picture")
@settings(pinned=[{"stage": "3"}], **_HERE)
def picture_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch, more: bool) -> Any:
        inputs, targets = batch
        output = engine(inputs.requires_grad_(more))
        if more:
            job.torch.autograd.grad(output.float().sum(), inputs, retain_graph=True)
        return job.torch.nn.functional.mse_loss(output.float(), targets)

    _train(job, engine, loss)


@scenario("rank 0 alone runs the engine without gradients before each forward pass", **_EACH)
def look_ahead_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch, more: bool) -> Any:
        if more:
            with job.torch.no_grad():
                engine(batch[0])
        return job.loss(engine, batch)

    _train(job, engine, loss)


@scenario("rank 0 alone runs the engine's module without gradients between the forward and the backward pass", **_EACH)
def module_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch, more: bool) -> Any:
        value = job.loss(engine, batch)
        if more:
            with job.torch.no_grad():
                engine.module(batch[0])
        return value

    _train(job, engine, loss)


@scenario("rank 0 alone throws a loss away, with its graph, and runs the batch again", **_EACH)
def second_attempt_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch, more: bool) -> Any:
        if more:
            job.loss(engine, batch)
        return job.loss(engine, batch)

    _train(job, engine, loss)


@scenario("a batch of the wrong width stops rank 0's forward pass; it takes the next one", **_EACH)
def bad_batch_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch, more: bool) -> Any:
        if more:
            try:
                engine(batch[0][:, :7])
            except RuntimeError as error:
                job.survived("the bad batch", error)
        return job.loss(engine, batch)

    _train(job, engine, loss)


@scenario("rank 0's loss has a term more", **_EACH)
def term_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch, more: bool) -> Any:
        output = engine(batch[0]).float()
        value = job.torch.nn.functional.mse_loss(output, batch[1])
        return value + 0.1 * output.square().mean() if more else value

    _train(job, engine, loss)


@scenario("rank 0 alone reads the optimizer's and the module's states, and the gradient norm", **_EACH)
def states_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def read() -> None:
        engine.optimizer.state_dict()
        engine.module.state_dict()
        job.bits("gradient norm on rank 0", engine.get_global_grad_norm() is None)

    _train(job, engine, _ordinary(job, engine), read)


@scenario("rank 0 alone writes the module's weights to a file of its own", stage="012", **_HERE)
def file_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def save() -> None:
        weights = {name: each.detach().cpu() for name, each in engine.module.state_dict().items()}
        job.torch.save(weights, io.BytesIO())

    _train(job, engine, _ordinary(job, engine), save)


@scenario("rank 0 alone logs norms of the parameters, and of gradients between the backward pass and the step", **_EACH)
def norms_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def norms() -> None:
        if job.stage == 3 and not job.plain:
            local = importlib.import_module("deepspeed.utils")
            get = getattr(local, "safe_get_local_fp32_param", None)  # the release may have none
            for parameter in engine.module.parameters():
                if get:
                    get(parameter).norm()
        for parameter in engine.module.parameters():
            parameter.detach().float().norm()

    def backward(loss: Any) -> None:
        engine.backward(loss)
        if job.rank == 0:
            for parameter in engine.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.float().norm()

    for step in range(_STEPS):
        job.train(engine, step, backward=backward)
        if job.rank == 0:
            norms()


@scenario("rank 0 alone calls zero_grad() of the engine, the module and the optimizer after each step", **_EACH)
def zeroed_by_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def zero() -> None:
        engine.zero_grad()
        engine.module.zero_grad()
        engine.optimizer.zero_grad()

    _train(job, engine, _ordinary(job, engine), zero)


@scenario("rank 0 alone has a second backward pass through the graph of a micro-batch before the last")
@settings(
    stage="0", accumulation="23", pinned=[{"stage": "0", "accumulation": "2"}], ranks=("2",), precision=("fp32", "bf16")
)
def two_passes_of_one_rank(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(_STEPS):
        for micro, batch in enumerate(job.batches(step)):
            output = engine(batch[0]).float()
            value = job.torch.nn.functional.mse_loss(output, batch[1])
            if job.rank == 0 and micro + 1 < job.accumulation:
                engine.backward(output.square().mean(), retain_graph=True)
            engine.backward(value)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")
