"""Parameters that are not used in every step, micro-batch or rank, and unusual ones: empty, scalar."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_OVERLAP = [
    {"stage": "1", "overlap_comm": "true", "accumulation": accumulation, "offload": offload, "buckets": buckets}
    for accumulation in ("2", "3")
    for offload, buckets in (("none", "large"), ("none", "small"), ("optimizer", "large"))
]
_SEVERAL = ("2", "4")


def _branches(job: Job, both: Callable[[int, int], bool]) -> None:
    """both: (step, micro-batch) -> whether both branches are used."""
    engine = job.engine(job.Branches())
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            value = job.loss(engine, batch, both(step, micro))
            engine.backward(value)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


@scenario("a branch is used in every second step")
def in_every_second_step(job: Job) -> None:
    _branches(job, lambda step, _: step % 2 == 0)


@scenario("a branch is first used in the third step")
def from_the_third_step_on(job: Job) -> None:
    _branches(job, lambda step, _: step >= 2)


@scenario("a branch is used only in the first micro-batch", pinned=_OVERLAP, accumulation="23")
def in_first_microbatch(job: Job) -> None:
    _branches(job, lambda _, micro: micro == 0)


@scenario("a branch is used only in the last micro-batch", pinned=_OVERLAP[:2], accumulation="23")
def in_last_microbatch(job: Job) -> None:
    _branches(job, lambda _, micro: micro + 1 == job.accumulation)


@scenario("a branch is used only by rank 0", stage="0", ranks=_SEVERAL)
def by_one_rank(job: Job) -> None:
    _branches(job, lambda *_: job.rank == 0)


@scenario("a branch is used by a different rank in each step", stage="0", ranks=_SEVERAL)
def by_ranks_in_turn(job: Job) -> None:
    _branches(job, lambda step, _: step % job.world_size == job.rank)


@scenario(
    "a branch is used only by rank 0's first micro-batch",
    pinned=_OVERLAP,
    stage="01",
    ranks=_SEVERAL,
    accumulation="23",
)
def by_one_rank_in_first_microbatch(job: Job) -> None:
    _branches(job, lambda _, micro: job.rank == 0 and micro == 0)


@scenario(
    "a branch is used by rank 0's first and the other ranks' last micro-batch",
    stage="0",
    ranks=_SEVERAL,
    accumulation="23",
)
def by_ranks_in_other_microbatches(job: Job) -> None:
    _branches(job, lambda _, micro: micro == 0 if job.rank == 0 else micro + 1 == job.accumulation)


@scenario(
    "a branch that the rank does not need is multiplied by zero, as scripts do for ZeRO-3",
    works_around=("bf16_zero1_norm_of_used", "zero12_offload_left_out_gradients", "zero1_overlap_left_out_microbatch"),
    ranks=_SEVERAL,
)
def times_zero(job: Job) -> None:
    model = job.model(
        lambda self, x, weight: self.first(x) + weight * self.second(x), first=job.MLP(), second=job.MLP()
    )
    engine = job.engine(model)
    weights = iter([float(number % job.world_size == job.rank) for number in range(100)])
    for step in range(4):
        job.train(engine, step, lambda batch: job.loss(engine, batch, next(weights)))


def _layers_dropped(job: Job, drawn: Any) -> None:
    nn = job.torch.nn

    def forward(self: Any, x: Any, kept: int) -> Any:
        for number, layer in enumerate(self.layers):
            if kept >> number & 1:
                x = x + layer(x).tanh()
        return self.head(x)

    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    engine = job.engine(job.model(forward, layers=layers, head=nn.Linear(16, 1)))
    for step in range(5):
        job.train(engine, step, lambda batch: job.loss(engine, batch, next(drawn)))


@scenario("layers are dropped, the same on all ranks")
def layers_dropped(job: Job) -> None:
    _layers_dropped(job, iter([3 * number % 8 for number in range(100)]))


@scenario("layers are dropped, different ones on each rank", stage="0", ranks=_SEVERAL)
def layers_dropped_by_ranks(job: Job) -> None:
    _layers_dropped(job, iter([(3 * number + 5 * job.rank) % 8 for number in range(100)]))


@scenario("a layer is never used", pinned=_OVERLAP[:1])
def never(job: Job) -> None:
    nn = job.torch.nn
    model = job.model(lambda self, x: self.inner(x), inner=job.MLP(), spare=nn.Linear(16, 16))
    engine = job.engine(model)
    for step in range(4):
        job.train(engine, step)


@scenario("a layer that is never used is a separate group")
def unused_group(job: Job) -> None:
    nn = job.torch.nn
    inner, spare = job.MLP(), nn.Linear(16, 16)
    model = job.model(lambda self, x: self.inner(x), inner=inner, spare=spare)
    engine = job.engine(model, [{"params": list(each.parameters())} for each in (inner, spare)])
    for step in range(4):
        job.train(engine, step)


def _with_parameter(job: Job, value: Any, forward: Any) -> None:
    model = job.model(forward, extra=job.torch.nn.Parameter(value), inner=job.MLP())
    engine = job.engine(model)
    for step in range(4):
        job.train(engine, step)


@scenario("a parameter without elements is used", pinned=[{"stage": each, "precision": "fp16"} for each in "12"])
def empty_and_used(job: Job) -> None:
    _with_parameter(job, job.torch.zeros(0, 16), lambda self, x: self.inner(x) + (x @ self.extra.t()).sum())


@scenario("a parameter without elements is not used", pinned=[{"stage": each, "precision": "fp16"} for each in "12"])
def empty_and_unused(job: Job) -> None:
    _with_parameter(job, job.torch.zeros(0), lambda self, x: self.inner(x))


@scenario("a parameter is a scalar, such as a temperature")
def scalar(job: Job) -> None:
    _with_parameter(job, job.torch.tensor(0.5), lambda self, x: self.inner(x) * self.extra)


@scenario("a scalar parameter is used only in every second step")
def scalar_sometimes(job: Job) -> None:
    count = iter(range(1000))

    def forward(self: Any, x: Any) -> Any:
        return self.inner(x) * self.extra if next(count) // job.accumulation % 2 else self.inner(x)

    _with_parameter(job, job.torch.tensor(0.5), forward)
