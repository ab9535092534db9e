"""What scripts do between steps and around the passes: evaluation, survived exceptions, hooks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_SEVERAL = ("2", "3")


class Stumble(RuntimeError):
    """An exception in a batch, such as an out-of-memory error."""


def _evaluate(job: Job, engine: Any, label: str) -> None:
    engine.eval()
    with job.torch.no_grad():
        for number in range(2):
            job.note(f"{label}: evaluation loss {number}", job.loss(engine, job.batch(500 + number)))
    engine.train()


@scenario("an evaluation before the first step and after each")
def evaluation(job: Job) -> None:
    engine = job.engine(job.MLP())
    _evaluate(job, engine, "at first")
    for step in range(3):
        job.train(engine, step)
        _evaluate(job, engine, f"step {step}")


@scenario("an evaluation between micro-batches", accumulation=_SEVERAL)
def evaluation_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            engine.step()
            _evaluate(job, engine, f"step {step}, micro-batch {micro}")
        job.look(engine, f"step {step}")


@scenario("an evaluation between forward and backward pass, and between backward pass and step")
def evaluation_between_passes(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            value = job.loss(engine, batch)
            if step == 1:
                _evaluate(job, engine, f"before backward {micro}")
            engine.backward(value)
            if step == 2:
                _evaluate(job, engine, f"after backward {micro}")
            engine.step()
        job.look(engine, f"step {step}")


@scenario("a rollout of the module without gradients before each step, with growing batches")
def rollout(job: Job) -> None:
    """Not in inference_mode, where the emulated device has no views."""
    engine = job.engine(job.MLP())
    for step in range(3):
        inputs, _ = job.batch(600 + step)
        with job.torch.no_grad():
            for length in range(1, len(inputs) + 1):
                job.note(f"step {step}: rollout {length}", engine.module(inputs[:length]).float())
        job.train(engine, step)


@scenario("an evaluation does not use some parameters")
def evaluation_of_a_part(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        with job.torch.no_grad():
            job.note(f"step {step}: the first branch's loss", job.loss(engine, job.batch(700 + step), False))
        job.train(engine, step, lambda batch: job.loss(engine, batch, True))


def _stumbling_forward(job: Job, engine: Any, label: str) -> None:
    def stumble(*_: Any) -> None:
        raise Stumble("the forward pass stumbled")

    handle = engine.module.blocks[1].register_forward_pre_hook(stumble)
    try:
        engine.backward(job.loss(engine, job.batch(800)))
    except Stumble as error:
        job.survived(label, error)
    finally:
        handle.remove()


@scenario("a forward pass raises an exception; the script skips the batch")
def stumble_in_forward(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            _stumbling_forward(job, engine, f"before step {step}")
        job.train(engine, step)


@scenario("a forward pass within a round raises an exception; the script skips the batch", accumulation=_SEVERAL)
def stumble_in_forward_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            if micro:
                _stumbling_forward(job, engine, f"step {step}, micro-batch {micro}")
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("an evaluation raises an exception")
def stumble_in_evaluation(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            with job.torch.no_grad():
                _stumbling_forward(job, engine, f"before step {step}")
        job.train(engine, step)


@scenario("a loss is computed and dropped, without a backward pass")
def loss_thrown_away(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.note(f"step {step}: thrown away", job.loss(engine, job.batch(850 + step)))
        job.train(engine, step)


@scenario("a backward pass raises an exception at its start; the script skips the batch")
def stumble_in_backward(job: Job) -> None:
    def stumble(_: Any) -> None:
        raise Stumble("the backward pass stumbled")

    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            value = job.loss(engine, job.batch(900 + step))
            value.register_hook(stumble)  # type: ignore[no-untyped-call,unused-ignore]
            try:
                engine.backward(value)
            except Stumble as error:
                job.survived(f"before step {step}", error)
        job.train(engine, step)


@scenario("a backward pass raises an exception half-way; the script discards its gradients")
def stumble_half_way_in_backward(job: Job) -> None:
    def stumble(*_: Any) -> None:
        raise Stumble("the backward pass stumbled")

    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            handle = engine.module.blocks[0].register_forward_hook(
                lambda _, __, output: output.register_hook(stumble) and None
            )
            value = job.loss(engine, job.batch(900 + step))
            handle.remove()
            try:
                engine.backward(value)
            except Stumble as error:
                job.survived(f"before step {step}", error)
            engine.zero_grad()
        job.train(engine, step)


@scenario("hooks on parameters halve their gradients, some registered before the engine is created")
def parameter_hooks(job: Job) -> None:
    model = job.MLP()
    for parameter in model.blocks[0].parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call,unused-ignore]
    engine = job.engine(model)
    for parameter in engine.module.head.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call,unused-ignore]
    for step in range(3):
        job.train(engine, step)


@scenario("hooks on activations and modules change the values")
def module_hooks(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].register_forward_hook(lambda _, __, output: output * 1.5)
    engine = job.engine(model)
    engine.module.head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0.5,))
    engine.module.blocks[1].register_full_backward_hook(lambda _, passed, __: tuple(each * 2 for each in passed))
    for step in range(3):
        job.train(engine, step)


@scenario("register_post_accumulate_grad_hook on each parameter, which counts calls")
def accumulated_hooks(job: Job) -> None:
    engine = job.engine(job.MLP())
    counts: dict[str, int] = {}
    for name, parameter in engine.module.named_parameters():
        if hasattr(parameter, "register_post_accumulate_grad_hook"):

            def count(_: Any, name: str = name) -> None:
                counts[name] = counts.get(name, 0) + 1

            parameter.register_post_accumulate_grad_hook(count)
    for step in range(3):
        job.train(engine, step)
        job.note(f"step {step}: counted", str(sorted(counts.items())))


@scenario("submodules under torch.compile", accumulation=("1", "2"))
def compiled_submodules(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].compile(backend="eager")
    model.head.compile(backend="eager")
    engine = job.engine(model)
    for step in range(3):
        job.train(engine, step)


@scenario("gradients are read with safe_get_full_grad before each step", stage="123")
def gradients_looked_at(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            if micro + 1 == job.accumulation and not job.plain:
                get = importlib.import_module("deepspeed.utils").safe_get_full_grad
                for name, parameter in engine.module.named_parameters():
                    gradient = get(parameter)
                    job.bits(f"step {step}: {name}'s gradient", None if gradient is None else gradient.float())
            engine.step()
        job.look(engine, f"step {step}")
