"""Gradients that are discarded, and those that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings

_OFFLOAD = [{"stage": stage, "offload": "optimizer"} for stage in "12"]
_ZERO12 = [*_OFFLOAD, *({"stage": stage} for stage in "12")]

#: Elsewhere ZeRO adds the next micro-batch to what it has reduced, and keeps that where only ZeRO-3's own zero_grad()
#: reaches it; so does accumulation in fp32.
_GRADIENTS: dict[str, Any] = {"stage": "012", "accumulation": ("1",), "precision": ("fp32", "bf16", "fp16")}
_GRADIENTS_INSIDE: dict[str, Any] = {**_GRADIENTS, "stage": "01", "accumulation": ("2", "3")}
_BY_ZERO: dict[str, Any] = {"accumulation": ("1",)}
_BY_ZERO_INSIDE: dict[str, Any] = {"stage": "013", "accumulation": ("2", "3"), "offload": ("none",)}


def _bad(job: Job, engine: Any, number: int) -> None:
    """The backward pass of a batch whose targets are far off."""
    inputs, targets = job.batch(100 + number)
    engine.backward(job.loss(engine, (inputs, targets * 4)))


def _whole(job: Job, discard: Callable[[Any], None]) -> None:
    """Before each step but the first, a separate bad batch is discarded."""
    engine = job.engine(job.MLP())
    for step in range(4):
        if step:
            _bad(job, engine, step)
            discard(engine)
        job.train(engine, step)


def _inside(job: Job, discard: Callable[[Any], None]) -> None:
    """The second of a step's micro-batches is bad; everything accumulated so far is discarded with it."""
    engine = job.engine(job.MLP())
    for step in range(3):
        if step == 1:
            engine.backward(job.loss(engine, job.batch(99)))
            engine.step()
            _bad(job, engine, step)
            discard(engine)
            for micro in range(1, job.accumulation):
                engine.backward(job.loss(engine, job.batch(200 + micro)))
                engine.step()
            job.look(engine, "what is left of step 1")
        else:
            job.train(engine, step)


def _by_engine(engine: Any) -> None:
    engine.zero_grad()


def _by_optimizer(engine: Any) -> None:
    engine.optimizer.zero_grad()


def _by_optimizer_to_none(engine: Any) -> None:
    engine.optimizer.zero_grad(set_to_none=True)


def _by_optimizer_to_zero(engine: Any) -> None:
    engine.optimizer.zero_grad(set_to_none=False)


def _by_module(engine: Any) -> None:
    engine.module.zero_grad()


def _by_hand(engine: Any) -> None:
    for parameter in engine.module.parameters():
        parameter.grad = None


def _some_by_hand(engine: Any) -> None:
    for parameter in engine.module.blocks.parameters():
        parameter.grad = None


@scenario("a bad batch is discarded with engine.zero_grad()", pinned=_OFFLOAD, **_GRADIENTS)
def discarded_by_engine(job: Job) -> None:
    _whole(job, _by_engine)


@scenario("a bad batch is discarded with the optimizer's zero_grad()", pinned=_OFFLOAD, **_BY_ZERO)
def discarded_by_optimizer(job: Job) -> None:
    _whole(job, _by_optimizer)


@scenario("a bad batch is discarded with the optimizer's zero_grad(set_to_none=True)", **_BY_ZERO)
def discarded_to_none(job: Job) -> None:
    _whole(job, _by_optimizer_to_none)


@scenario("a bad batch is discarded with the optimizer's zero_grad(set_to_none=False)", pinned=_OFFLOAD, **_BY_ZERO)
def discarded_to_zero(job: Job) -> None:
    _whole(job, _by_optimizer_to_zero)


@scenario("a bad batch is discarded with module.zero_grad()", pinned=_OFFLOAD, **_GRADIENTS)
def discarded_by_module(job: Job) -> None:
    _whole(job, _by_module)


@scenario("a bad batch is discarded by setting every .grad to None", pinned=_ZERO12, **_GRADIENTS)
def discarded_by_hand(job: Job) -> None:
    _whole(job, _by_hand)


@scenario("a bad batch is discarded by setting every .grad but the head's to None")
@settings(stage="12", precision=("fp32",))
def some_discarded_by_hand(job: Job) -> None:
    _whole(job, _some_by_hand)


@scenario("engine.zero_grad() during an accumulation round", **_GRADIENTS_INSIDE)
def discarded_inside_by_engine(job: Job) -> None:
    _inside(job, _by_engine)


@scenario("the optimizer's zero_grad() during an accumulation round", **_BY_ZERO_INSIDE)
def discarded_inside_by_optimizer(job: Job) -> None:
    _inside(job, _by_optimizer)


@scenario("the optimizer's zero_grad(set_to_none=False) during an accumulation round", **_BY_ZERO_INSIDE)
def discarded_inside_to_zero(job: Job) -> None:
    _inside(job, _by_optimizer_to_zero)


@scenario("module.zero_grad() during an accumulation round", **_GRADIENTS_INSIDE)
def discarded_inside_by_module(job: Job) -> None:
    _inside(job, _by_module)


@scenario("every .grad set to None during an accumulation round", **_GRADIENTS_INSIDE)
def discarded_inside_by_hand(job: Job) -> None:
    _inside(job, _by_hand)


@scenario("engine.zero_grad() before each backward pass, with nothing to discard")
def nothing_discarded(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        if engine.micro_steps % job.accumulation == 0:
            engine.zero_grad()
        return job.loss(engine, batch)

    job.steps(engine, range(3), loss)


@scenario("zero_grad() of engine, optimizer or module after each step, as in PyTorch training loops")
def zeroed_after_each_step(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        (engine.zero_grad, engine.optimizer.zero_grad, engine.module.zero_grad)[step]()


_HALF = ("bf16", "fp16", "bf16, fp32 accumulation")
_SKIPPING = ("fp16", "bf16, fp32 accumulation")  # bf16 does so since 0.17.1, where the config asks for it
_SEVERAL = ("2", "4")
_NAN, _INF = float("nan"), float("inf")
_BF16_ZERO1 = {"stage": "1", "precision": "bf16, fp32 accumulation"}
_BF16_ZERO3 = [{"stage": "3", "precision": "bf16", "offload": offload} for offload in ("none", "optimizer")]


def _steps(job: Job, factor: Callable[[int, int], float], **config: Any) -> None:
    """Training in which the loss of micro-batch `micro` of step `step` is multiplied by factor(step, micro)."""
    engine = job.engine(job.MLP(), **config)
    for step in range(4):
        count = iter(range(job.accumulation))

        def loss(batch: Any, step: int = step, count: Any = count) -> Any:
            return job.loss(engine, batch) * factor(step, next(count))

        job.train(engine, step, loss)


@scenario("half precision, with only finite values", precision=_HALF, pinned=_BF16_ZERO3)
def all_finite(job: Job) -> None:
    _steps(job, lambda step, micro: 1.0)


@scenario("a loss that is nan on all ranks", precision=_SKIPPING, pinned=[_BF16_ZERO1])
def nan_loss(job: Job) -> None:
    _steps(job, lambda step, micro: _NAN if step == 1 else 1.0)


@scenario("a loss that is inf on all ranks", precision=_SKIPPING, pinned=[_BF16_ZERO1])
def infinite_loss(job: Job) -> None:
    _steps(job, lambda step, micro: _INF if step == 1 else 1.0)


@scenario("a loss that is inf on one rank, in bf16 with check_grad_overflow", stage="123", precision=("bf16",))
def infinite_loss_in_bf16(job: Job) -> None:
    last = job.rank == job.world_size - 1
    checked = {"enabled": True, "check_grad_overflow": True}
    _steps(job, lambda step, micro: _INF if step == 1 and last else 1.0, bf16=checked)


@scenario("a loss that is nan on all ranks, in fp32", precision=("fp32",), pinned=_OFFLOAD)
def nan_loss_in_fp32(job: Job) -> None:
    _steps(job, lambda step, micro: _NAN if step == 1 else 1.0)


@scenario("a loss that is nan in the first step", precision=_SKIPPING, pinned=[_BF16_ZERO1])
def nan_loss_at_first(job: Job) -> None:
    _steps(job, lambda step, micro: 1.0 if step else _NAN)


@scenario("a loss that is nan on the last rank only", precision=_SKIPPING, ranks=_SEVERAL, pinned=[_BF16_ZERO1])
def nan_loss_on_one_rank(job: Job) -> None:
    last = job.rank == job.world_size - 1
    _steps(job, lambda step, micro: _NAN if step == 1 and last else 1.0)


@scenario("a loss that is nan in the first of a step's micro-batches", precision=_SKIPPING, accumulation=("2", "3"))
def nan_loss_in_one_micro_batch(job: Job) -> None:
    _steps(job, lambda step, micro: _NAN if (step, micro) == (1, 0) else 1.0)


@scenario(
    "gradients that are nan only in parameters that no other rank uses",
    pinned=[_BF16_ZERO1],  # elsewhere ZeRO requires all ranks to use the same parameters
    stage="0",
    precision=("fp16",),
    ranks=_SEVERAL,
    optimizer=("SGD", "client's SGD"),
)
def nan_in_a_branch_of_one_rank(job: Job) -> None:
    engine = job.engine(job.Branches())
    last = job.rank == job.world_size - 1
    for step in range(4):

        def loss(batch: Any, step: int = step) -> Any:
            value = job.loss(engine, batch, last)
            if step == 1 and last:  # only through the second branch
                value = value + engine.module.second(batch[0]).float().sum() * _NAN
            return value

        job.train(engine, step, loss)


@scenario("a step whose gradients are all zero", pinned=[_BF16_ZERO1])
def zero_gradients(job: Job) -> None:
    _steps(job, lambda step, micro: 0.0 if step == 1 else 1.0)


@scenario("one rank's gradients are all zero", ranks=_SEVERAL, pinned=[_BF16_ZERO1])
def zero_gradients_on_one_rank(job: Job) -> None:
    _steps(job, lambda step, micro: 0.0 if job.rank == 0 and step != 2 else 1.0)
