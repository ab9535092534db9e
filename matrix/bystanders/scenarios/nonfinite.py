"""Losses and gradients that are inf, nan or all zero, followed by good batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HALF = ("bf16", "fp16", "bf16, fp32 accumulation")
_SKIPPING = ("fp16", "bf16, fp32 accumulation")  # bf16 does so since 0.17.1, where the config asks for it
_SEVERAL = ("2", "4")
_NAN, _INF = float("nan"), float("inf")
_BF16_ZERO1 = {"stage": "1", "precision": "bf16, fp32 accumulation"}
_BF16_ZERO3 = [{"stage": "3", "precision": "bf16", "offload": offload} for offload in ("none", "optimizer")]
_OFFLOAD = [{"stage": stage, "offload": "optimizer"} for stage in "12"]


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
