"""Checkpoints written and loaded in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_SEVERAL = ("2", "3")


@scenario("a checkpoint is written after each step, none is loaded")
def saved(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")


@scenario("a checkpoint is written within a round", accumulation=_SEVERAL)
def saved_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            engine.step()
            if micro == 0:
                job.save(engine, f"step{step}")
        job.look(engine, f"step {step}")


@scenario("a checkpoint written within a round is loaded by a new engine", accumulation=_SEVERAL)
def resumed_from_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    engine.backward(job.loss(engine, job.batch(100)))
    engine.step()
    job.save(engine, "within")
    engine = job.engine(job.MLP())
    job.load(engine, "within")
    for step in range(1, 4):
        job.train(engine, step)


@scenario("a new engine in the same process resumes from a checkpoint")
def resumed(job: Job) -> None:
    job.resume(lambda _: job.engine(job.MLP()))


@scenario("the engine returns to an earlier checkpoint, not the last one")
def back_to_another_tag(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")
    job.load(engine, "step1")
    job.look(engine, "back")
    for step in range(3, 5):
        job.train(engine, step)


@scenario("after an unfinished round the engine returns to a checkpoint", accumulation=_SEVERAL)
def back_from_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    engine.set_gradient_accumulation_boundary(False)
    engine.backward(job.loss(engine, job.batch(100)))
    engine.zero_grad()
    job.load(engine, "two")
    for step in range(2, 4):
        for micro, batch in enumerate(job.batches(step)):
            engine.set_gradient_accumulation_boundary(micro + 1 == job.accumulation)
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("a new engine starts from the weights of a checkpoint: load_module_only")
def warm_start(job: Job) -> None:
    job.resume(lambda seed: job.engine(job.MLP(seed=seed)), module_only=True)


@scenario(
    "a new engine loads a checkpoint without the optimizer's states", works_around=("zero3_load_module_only_unsaid",)
)
def resumed_without_optimizer(job: Job) -> None:
    job.resume(lambda seed: job.engine(job.MLP(seed=seed)), optimizer=False)


@scenario("the engine returns to a checkpoint's weights and keeps its optimizer's states")
def back_to_weights(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    job.save(engine, "one")
    job.train(engine, 1)
    job.load(engine, "one", optimizer=False)
    for step in range(2, 4):
        job.train(engine, step)


@scenario("a resumed engine writes a checkpoint, from which a third one resumes")
def resumed_twice(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")
        engine = job.engine(job.MLP())
        job.load(engine, f"step{step}")
    job.train(engine, 3)
