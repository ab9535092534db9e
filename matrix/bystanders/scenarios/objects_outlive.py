"""Optimizers, schedulers and models that live longer than an engine, which was thrown away at some point."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import schedulers

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ALONE: Any = {"stage": "0", "precision": ("fp32",), "ranks": ("1",), "optimizer": ("client's SGD",)}
_PINNED: Any = [{"stage": "0", "ranks": "1", "optimizer": "client's SGD"}]
_COSINE: Any = {"scheduler": {"type": "WarmupCosineLR", "params": schedulers._COSINE}}
_WARMUP: Any = {
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": list(schedulers._OWN), **schedulers._LINEAR}}
}


def _optimizer(job: Job, model: Any) -> Any:
    """Two groups, which have their own rates."""
    options = {**space.SGD, "foreach": False}
    return job.torch.optim.SGD(schedulers._groups(model.to(job.device), schedulers._OWN), **options)


def _trained(job: Job, engine: Any, share: Callable[[int], float], steps: int = 5) -> None:
    """share: of the groups' own rates, in the step after that iteration."""
    for step in range(steps):
        if job.plain:
            for group, rate in zip(engine.optimizer.param_groups, schedulers._OWN):
                group["lr"] = rate * share(step - 1)
        job.train(engine, step)


def _made_twice(job: Job, config: Any, share: Callable[[int], float], between: Callable[[Any], Any]) -> None:
    """between: gets the first engine, and may return what the second is made with, besides the optimizer."""
    model = job.MLP()
    optimizer = _optimizer(job, model)
    first = job.engine(model, [], lambda _: optimizer, **config)
    between(first)
    _trained(job, job.engine(model, [], lambda _: optimizer, **config), share)


@scenario("an engine with a warm-up and a cosine is made twice with one optimizer", pinned=_PINNED, **_ALONE)
def cosine_made_twice(job: Job) -> None:
    _made_twice(job, _COSINE, schedulers._cosine, lambda engine: engine.destroy())


@scenario("an engine with a warm-up and a cosine is made again while the first one exists", pinned=_PINNED, **_ALONE)
def cosine_made_beside(job: Job) -> None:
    _made_twice(job, _COSINE, schedulers._cosine, lambda engine: None)


@scenario("an engine with a warm-up is made twice with one optimizer", pinned=_PINNED, **_ALONE)
def warmup_made_twice(job: Job) -> None:
    _made_twice(job, _WARMUP, schedulers._linear, lambda engine: engine.destroy())


@contextmanager
def _out_of_memory(optimizer: Any) -> Iterator[None]:
    """The next step fails, as where memory ends while the moments are created."""

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("out of memory")

    optimizer.step = fail
    try:
        yield
    finally:
        del optimizer.step


def _fails_once(job: Job, engine: Any) -> None:
    basic = getattr(engine, "basic_optimizer", engine.optimizer)
    with _out_of_memory(basic):
        for batch in job.batches(50):
            engine.backward(job.loss(engine, batch))
            try:
                engine.step()
            except MemoryError as error:
                job.survived("the first step", error)
    engine.module.zero_grad()


@scenario(
    "the first step of an engine with a warm-up and a cosine fails, and another one is made with its optimizer",
    pinned=_PINNED,
    **_ALONE,
)
def cosine_after_a_failure(job: Job) -> None:
    _made_twice(job, _COSINE, schedulers._cosine, lambda engine: _fails_once(job, engine))


@scenario(
    "a step fails, the engine is destroyed, and another one is made for the same module",
    precision=("fp32",),
    optimizer=("SGD",),
    pinned=[{"stage": "3"}, {"stage": "1"}],
)
def made_after_a_failure(job: Job) -> None:
    engine = job.engine(job.MLP())
    _fails_once(job, engine)
    engine.destroy()
    engine = job.engine(engine.module)
    for step in range(3):
        job.train(engine, step)


@scenario("an engine cannot be made, and then is with the same model and optimizer", pinned=_PINNED, **_ALONE)
def made_after_a_refusal(job: Job) -> None:
    model = job.MLP()
    optimizer = _optimizer(job, model)
    if not job.plain:
        try:
            job.engine(model, [], lambda _: optimizer, train_batch_size=7, gradient_accumulation_steps=5)
        except AssertionError:
            job.bits("refused", 1)
    _trained(job, job.engine(model, [], lambda _: optimizer, **_WARMUP), schedulers._linear)


def _plainly(job: Job, model: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    loss: Any = job.loss(model, job.batch(step))
    loss.backward()
    optimizer.step()
    job.note(f"plain step {step}", job.torch.cat([each.detach().flatten() for each in model.parameters()]))


@scenario(
    "an engine is destroyed after a few steps, and its model and optimizer are trained without one",
    pinned=_PINNED,
    **{**_ALONE, "accumulation": ("1",), "clipping": ("off",)},
)
def trained_on_without_an_engine(job: Job) -> None:
    model = job.MLP()
    optimizer = _optimizer(job, model)
    engine = job.engine(model, [], lambda _: optimizer)
    for step in range(2):
        job.train(engine, step)
    engine.destroy()
    del engine
    gc.collect()
    for step in range(2, 5):
        _plainly(job, model, optimizer, step)


@scenario(
    "an engine is thrown away before its first step, and its optimizer is used without one, under PyTorch's schedule",
    pinned=_PINNED,
    **{**_ALONE, "accumulation": ("1",), "clipping": ("off",)},
)
def optimizer_taken_back(job: Job) -> None:
    model = job.MLP()
    optimizer = _optimizer(job, model)
    _used_without(job, model, optimizer, {})


def _used_without(job: Job, model: Any, optimizer: Any, config: Any) -> None:
    job.engine(model, [], lambda _: optimizer, **config).destroy()
    schedule = job.torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(3):
        _plainly(job, model, optimizer, step)
        schedule.step()


# since 0.15.3 DeepSpeed's own schedules leave their first rates behind
_OLD: Any = {"pinned": _PINNED, "release": "0.14.2", **_ALONE, "accumulation": ("1",), "clipping": ("off",)}


@scenario("an optimizer is taken back from an engine with a warm-up, and used without one", **_OLD)
def optimizer_taken_back_from_warmup(job: Job) -> None:
    model = job.MLP()
    _used_without(job, model, _optimizer(job, model), {} if job.plain else _WARMUP)


@scenario("the engine has a warm-up and a cosine, and the script a schedule of PyTorch's, which it steps later", **_OLD)
def schedule_of_pytorch_beside_cosine(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, [], lambda given: _optimizer(job, model), **_COSINE)
    schedule = job.torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda step: step / 4)
    for step in range(4):
        job.train(engine, step)
        schedule.step()


@scenario(
    "an engine is gone while a graph of it is alive, which then gets its gradients",
    pinned=_PINNED,
    **{**_ALONE, "accumulation": ("1",)},
)
def graph_of_a_gone_engine(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    model = engine.module
    loss: Any = job.loss(engine, job.batch(1))
    engine.destroy()
    del engine
    gc.collect()
    loss.backward()
    for name, parameter in model.named_parameters():
        job.note(f"gradient of {name}", parameter.grad)


@scenario(
    "after an engine's end the model has the hooks that it has without dsfix",
    pinned=[{"stage": "3"}, {"stage": "1"}],
    reference=False,
    optimizer=("SGD",),
)
def hooks_left(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
    model = engine.module
    engine.destroy()
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    for name, module in model.named_modules():
        job.bits(f"hooks of {name}", repr([len(getattr(module, kind)) for kind in kinds]))
    for name, parameter in model.named_parameters():
        job.bits(f"hooks of {name}", len(parameter._backward_hooks or ()))


@scenario(
    "a scheduler of PyTorch's goes on with the next engine, which has the same optimizer and an empty group",
    pinned=_PINNED,
    **_ALONE,
)
def scheduler_goes_on(job: Job) -> None:
    model = job.MLP()
    options = {**space.SGD, "foreach": False}
    parameters = list(model.to(job.device).parameters())
    optimizer = job.torch.optim.SGD([{"params": parameters}, {"params": []}], **options)
    schedule = job.torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for part in range(2):
        engine = job.engine(model, [], lambda _: optimizer)
        for step in range(2 * part, 2 * part + 2):
            job.train(engine, step)
            schedule.step(1.0)
        engine.destroy()
