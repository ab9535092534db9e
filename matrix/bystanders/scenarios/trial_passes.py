"""Backward passes that are discarded and not trained on: a warm-up, or the first pass of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_OFFLOAD = [{"stage": stage, "offload": "optimizer", "ranks": ranks} for stage, ranks in ("12", "21")]
_TWO = [{"stage": "2", "offload": "optimizer"}, {"stage": "2", "offload": "optimizer", "precision": "bf16"}]
_ONE: dict[str, Any] = {"accumulation": ("1",), "precision": ("fp32", "bf16", "fp16")}


def _by_engine(engine: Any) -> None:
    engine.zero_grad()


def _by_optimizer(engine: Any) -> None:
    engine.optimizer.zero_grad()


def _by_module(engine: Any) -> None:
    engine.module.zero_grad()


def _by_hand(engine: Any) -> None:
    for parameter in engine.module.parameters():
        parameter.grad = None


def _warm_up(job: Job, discard: Callable[[Any], None]) -> None:
    """Before the first step, and before a later one, as after a change of batch size."""
    engine = job.engine(job.MLP())
    for step in range(3):
        if step != 1:
            engine.backward(job.loss(engine, job.batch(100 + step)))
            discard(engine)
        job.train(engine, step)


def _first_pass(job: Job, discard: Callable[[Any], None]) -> None:
    """Each step has two passes, as in SAM; the first is not at the boundary."""
    engine = job.engine(job.MLP())
    for step in range(3):
        engine.set_gradient_accumulation_boundary(False)
        engine.backward(job.loss(engine, job.batch(100 + step)))
        discard(engine)
        engine.set_gradient_accumulation_boundary(True)
        job.train(engine, step)


@scenario("a warm-up pass is discarded with engine.zero_grad()", pinned=_OFFLOAD, stage="012", **_ONE)
def warm_up_by_engine(job: Job) -> None:
    _warm_up(job, _by_engine)


@scenario("a warm-up pass is discarded with module.zero_grad()", pinned=_OFFLOAD, stage="012", **_ONE)
def warm_up_by_module(job: Job) -> None:
    _warm_up(job, _by_module)


@scenario("a warm-up pass is discarded by setting every .grad to None", pinned=_OFFLOAD, stage="012", **_ONE)
def warm_up_by_hand(job: Job) -> None:
    _warm_up(job, _by_hand)


@scenario("the first of two passes, not at the boundary, is discarded with engine.zero_grad()", stage="1", **_ONE)
def first_pass_by_engine(job: Job) -> None:
    _first_pass(job, _by_engine)


@scenario("the first of two passes, not at the boundary, is discarded with module.zero_grad()", stage="1", **_ONE)
def first_pass_by_module(job: Job) -> None:
    _first_pass(job, _by_module)


# with ZeRO-2 DeepSpeed keeps what it has reduced, except before 0.19.0 with offload, by a bug
@scenario(
    "ZeRO-2: the first of two passes, not at the boundary, is discarded with the optimizer's zero_grad()",
    pinned=_TWO, reference=False, stage="2", **_ONE,
)  # fmt: skip
def first_pass_zero2_by_optimizer(job: Job) -> None:
    _first_pass(job, _by_optimizer)


@scenario(
    "ZeRO-2: the first of two passes, not at the boundary, is discarded with module.zero_grad()",
    pinned=_TWO, reference=False, stage="2", **_ONE,
)  # fmt: skip
def first_pass_zero2_by_module(job: Job) -> None:
    _first_pass(job, _by_module)


@scenario(
    "ZeRO-2: the first of two passes, not at the boundary, is discarded by setting every .grad to None",
    pinned=_TWO, reference=False, stage="2", **_ONE,
)  # fmt: skip
def first_pass_zero2_by_hand(job: Job) -> None:
    _first_pass(job, _by_hand)
