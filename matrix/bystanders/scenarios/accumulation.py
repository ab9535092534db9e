"""Accumulation controlled by the script: no_sync, boundaries set by hand, rounds of varying length."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ONE, _SEVERAL = ("1",), ("2", "3")


def _rounds(job: Job, engine: Any, lengths: Sequence[int]) -> None:
    """Rounds with these numbers of micro-batches, each ended by a boundary set by hand; step() only there."""
    number = 0
    for step, length in enumerate(lengths):
        for micro in range(length):
            engine.set_gradient_accumulation_boundary(micro == length - 1)
            value = job.loss(engine, job.batch(number))
            engine.backward(value)
            job.note(f"step {step}: loss of micro-batch {micro}", value)
            number += 1
        engine.step()
        job.look(engine, f"step {step}")


@scenario("rounds of 3 under engine.no_sync(), the last micro-batch outside", stage="01", accumulation=_ONE)
def under_no_sync(job: Job) -> None:
    engine = job.engine(job.MLP())
    if not hasattr(engine, "no_sync"):  # before 0.16.0
        _rounds(job, engine, (3, 3, 3))
        return
    for step in range(3):
        with engine.no_sync():
            for micro in range(2):
                engine.backward(job.loss(engine, job.batch(3 * step + micro)))
        engine.backward(job.loss(engine, job.batch(3 * step + 2)))
        engine.step()
        job.look(engine, f"step {step}")


@scenario(
    "the script continues without engine.no_sync() where it is refused",
    works_around=("no_sync_incompatible",),
    pinned=[{"stage": stage, "accumulation": "2"} for stage in "23"],
    stage="23",
    accumulation=_SEVERAL,
)
def no_sync_refused(job: Job) -> None:
    """Whether it is entered is not noted: dsfix permits it in more cases."""
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            with ExitStack() as stack:
                if micro + 1 < job.accumulation and hasattr(engine, "no_sync"):
                    try:
                        stack.enter_context(engine.no_sync())
                    except AssertionError as error:
                        print(error)
                engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario(
    "engine.no_sync() is tried around a backward pass, which is repeated without it if refused",
    pinned=[{"stage": stage, "accumulation": "2"} for stage in "23"],
    stage="23",
    accumulation=_SEVERAL,
)
def no_sync_tried(job: Job) -> None:
    engine = job.engine(job.MLP())
    tried = hasattr(engine, "no_sync")
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            try:
                with engine.no_sync() if tried and micro == 0 else nullcontext():
                    engine.backward(job.loss(engine, batch))
            except AssertionError as error:
                print(error)
                tried = False
                engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario(
    "as accelerate does it: no_sync around all but the last micro-batch, step() inside",
    stage="23",
    accumulation=_SEVERAL,
)
def step_under_no_sync(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        for micro, batch in enumerate(job.batches(step)):
            with ExitStack() as stack:
                if micro + 1 < job.accumulation and hasattr(engine, "no_sync"):
                    stack.enter_context(engine.no_sync())
                engine.backward(job.loss(engine, batch))
                engine.step()
        job.look(engine, f"step {step}")


@scenario("the boundary is set by hand, and step() called only there", accumulation=_SEVERAL)
def boundary_set_by_hand(job: Job) -> None:
    _rounds(job, job.engine(job.MLP()), [job.accumulation] * 3)


@scenario("the boundary is set by hand, and step() called for every micro-batch", accumulation=_SEVERAL)
def boundary_set_by_hand_and_each_step(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.set_gradient_accumulation_boundary(micro + 1 == job.accumulation)
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("the last round of an epoch is shorter, its boundary set by hand", accumulation=("3",))
def short_last_round(job: Job) -> None:
    _rounds(job, job.engine(job.MLP()), (3, 3, 1, 3, 2))


@scenario(
    "rounds of 1 to 3 micro-batches with boundaries set by hand; accumulation is not in the config", accumulation=_ONE
)
def rounds_of_any_length(job: Job) -> None:
    _rounds(job, job.engine(job.MLP()), (2, 1, 3, 2))


@scenario("the script divides its losses itself: scale_wrt_gas=False", accumulation=_SEVERAL)
def losses_divided_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch) / job.accumulation, scale_wrt_gas=False)
            engine.step()
        job.look(engine, f"step {step}")


@scenario("the epoch ends within a round, and the next epoch continues it", accumulation=_SEVERAL)
def epoch_ends_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for epoch in range(job.accumulation):
        engine.train()
        for number in range(job.accumulation + 1):
            value = job.loss(engine, job.batch(10 * epoch + number))
            engine.backward(value)
            engine.step()
            job.note(f"epoch {epoch}: loss of micro-batch {number}", value)
        engine.eval()
    job.look(engine, "at the end of the last epoch, and of a round")
