"""More than one engine in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


@scenario("two engines are trained alternately, step by step")
def two_engines(job: Job) -> None:
    engines = [job.engine(job.MLP(seed=seed)) for seed in range(2)]
    for step in range(6):
        job.train(engines[step % 2], step)


@scenario("two engines are trained alternately, micro-batch by micro-batch", accumulation=("2", "3"))
def two_engines_within_a_round(job: Job) -> None:
    engines = [job.engine(job.MLP(seed=seed)) for seed in range(2)]
    for step in range(3):
        for batch in job.batches(step):
            for engine in engines:
                engine.backward(job.loss(engine, batch))
                engine.step()
        for number, engine in enumerate(engines):
            job.look(engine, f"step {step}, engine {number}")


@scenario("a GAN with two engines; the discriminator is frozen while the generator is trained through it")
def gan(job: Job) -> None:
    generator, discriminator = job.engine(job.MLP()), job.engine(job.MLP(seed=1))

    def frozen(yes: bool) -> None:
        for parameter in discriminator.module.parameters():
            parameter.requires_grad_(not yes)

    def real(batch: Any) -> Any:
        with job.torch.no_grad():
            made = batch[0] + generator(batch[0])
        return job.loss(discriminator, (made, batch[1]))

    def fooled(batch: Any) -> Any:
        return job.loss(discriminator.module, (batch[0] + generator(batch[0]), batch[1]))

    for step in range(0, 6, 2):
        frozen(False)
        job.train(discriminator, step, real)
        frozen(True)
        job.train(generator, step + 1, fooled)


@scenario("a frozen reference model and the trained model, each with an engine", ranks=("1", "2"))
def teacher(job: Job) -> None:
    taught = job.engine(job.MLP())
    other = job.engine(job.MLP(seed=1))
    other.eval()

    def loss(batch: Any) -> Any:
        with job.torch.no_grad():
            target = other(batch[0]).float()
        return job.loss(taught, (batch[0], target))

    for step in range(3):
        job.train(taught, step, loss)


def _destroyed(job: Job, then: Callable[[Any], Any]) -> None:
    """then: the first engine -> the next one's model."""
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    engine.destroy()
    engine = job.engine(then(engine))
    for step in range(2, 5):
        job.train(engine, step)


@scenario("an engine is destroyed, and another one created for a new model", works_around=("config_dict_reused",))
def destroyed(job: Job) -> None:
    _destroyed(job, lambda _: job.MLP(seed=1))


@scenario("an engine is destroyed, and another one created for the same module")
def destroyed_and_made_again(job: Job) -> None:
    _destroyed(job, lambda engine: engine.module)
