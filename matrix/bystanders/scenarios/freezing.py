"""Parameters that are frozen for a while or for good, or that a step does not use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.space import one_job

_ONE_RANK = [
    {"precision": precision, "optimizer": optimizer, "ranks": "1"}
    for precision in ("bf16", "fp16")
    for optimizer in ("client's SGD", "AdamW")
]


def _train_only(engine: Any, *parts: str) -> None:
    for name, parameter in engine.module.named_parameters():
        parameter.requires_grad_(name.startswith(parts))


def _sgd(job: Job) -> Any:
    """Without momentum and weight decay: a step with a zero gradient changes nothing."""
    return functools.partial(job.torch.optim.SGD, lr=0.1)


@scenario("two halves of the model are trained alternately, as in a GAN", pinned=_ONE_RANK)
def by_turns(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(6):
        _train_only(engine, ("first", "second")[step % 2])
        job.train(engine, step, lambda batch: job.loss(engine, batch, True))


@scenario("two halves are trained alternately, without momentum and weight decay")
@settings(pinned=_ONE_RANK[::2], optimizer=["SGD"])
def by_turns_without_memory(job: Job) -> None:
    engine = job.engine(job.Branches(), optimizer=_sgd(job))
    for step in range(6):
        _train_only(engine, ("first", "second")[step % 2])
        job.train(engine, step, lambda batch: job.loss(engine, batch, True))


@scenario("two halves are separate parameter groups and trained alternately", pinned=_ONE_RANK)
def groups_by_turns(job: Job) -> None:
    model = job.Branches()
    groups = [{"params": list(model.first.parameters())}, {"params": list(model.second.parameters()), "lr": 0.02}]
    engine = job.engine(model, groups)
    for step in range(6):
        _train_only(engine, ("first", "second")[step % 2])
        job.train(engine, step, lambda batch: job.loss(engine, batch, True))


@scenario("blocks are trained in turn for two steps each, as in BAdam", pinned=_ONE_RANK)
def block_wise(job: Job) -> None:
    engine = job.engine(job.MLP(depth=3))
    for step in range(8):
        _train_only(engine, ("blocks.0", "blocks.1", "blocks.2", "head")[step // 2])
        job.train(engine, step)


@scenario("the first and last layers are always trained, plus one block that changes every second step, as in LISA")
@settings(pinned=_ONE_RANK)
def ends_and_one_block(job: Job) -> None:
    engine = job.engine(job.MLP(depth=4))
    for step in range(8):
        _train_only(engine, "blocks.0", "head", f"blocks.{(2, 1, 3, 2)[step // 2]}.")
        job.train(engine, step)


@scenario("frozen once the engine is created, and unfrozen from the top", pinned=_ONE_RANK)
def gradual_unfreezing(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(6):
        _train_only(engine, *("head", "blocks.1", "blocks.0")[: 1 + step // 2])
        job.train(engine, step)


@scenario("frozen before the engine is created, unfrozen after two steps", pinned=_ONE_RANK, stage="0")
def frozen_before_thawed_later(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    engine = job.engine(model)
    for step in range(5):
        if step == 2:
            engine.module.requires_grad_(True)
        job.train(engine, step)


@scenario("the first epoch trains all parameters, then the lower half is frozen for good", pinned=_ONE_RANK)
def frozen_later(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(5):
        if step == 2:
            _train_only(engine, "blocks.1", "head")
        job.train(engine, step)


@scenario("frozen in each step's last micro-batch, unfrozen in the next step's first", accumulation="23", stage="12")
def frozen_in_last_microbatch(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            engine.module.blocks[0].requires_grad_(micro + 1 < job.accumulation)
            value = job.loss(engine, batch)
            engine.backward(value)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


def _with_adapter(job: Job) -> Any:
    """A frozen base with LoRA's two matrices."""
    nn = job.torch.nn
    base = job.MLP()
    base.requires_grad_(False)
    down, up = nn.Linear(16, 2, bias=False), nn.Linear(2, 1, bias=False)
    nn.init.normal_(up.weight)
    return job.model(lambda self, x: self.base(x) + self.up(self.down(x)), base=base, down=down, up=up)


@scenario("LoRA: the base is always frozen, and the optimizer is given all parameters", pinned=_ONE_RANK)
def adapter(job: Job) -> None:
    engine = job.engine(_with_adapter(job))
    job.steps(engine, range(5))


@scenario("LoRA: the optimizer is given only the trained parameters", works_around=("frozen_parameters_decayed",))
def adapter_alone(job: Job) -> None:
    model = _with_adapter(job)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    job.steps(engine, range(5))


@scenario("LoRA with torch_autocast on a base in bf16, to which the script casts the adapter")
@settings(
    works_around=("zero3_gather_of_two_dtypes", "zero3_autocast_gather_of_two_dtypes"),
    release="0.18.9",
    reference=False,
    **one_job(stage="3", ranks="2"),
)
def adapter_cast_to_its_base(job: Job) -> None:
    model = _with_adapter(job).to(job.torch.bfloat16)
    trained = [each for each in model.parameters() if each.requires_grad]
    engine = job.engine(model, trained, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    job.steps(engine, range(3))


@scenario("LoRA: the adapter is one group, the frozen base another", stage="0")
def adapter_and_base_groups(job: Job) -> None:
    model = _with_adapter(job)
    adapters = [*model.down.parameters(), *model.up.parameters()]
    engine = job.engine(model, [{"params": adapters, "lr": 0.02}, {"params": list(model.base.parameters())}])
    job.steps(engine, range(5))


@scenario("a frozen target network is the student of two steps ago, copied by the script")
@settings(pinned=_ONE_RANK, stage="012")
def target_network(job: Job) -> None:
    student, target = job.MLP(), job.MLP()
    target.requires_grad_(False)
    both = job.model(lambda self, x: (self.student(x), self.target(x)), student=student, target=target)
    engine = job.engine(both)

    def loss(batch: Any) -> Any:
        learned, taught = (each.float() for each in engine(batch[0]))
        return job.torch.nn.functional.mse_loss(learned, 0.5 * (taught + batch[1]))

    for step in range(6):
        job.train(engine, step, loss)
        if step % 2:
            engine.module.target.load_state_dict(engine.module.student.state_dict())


_ALONE = [{"precision": precision, "optimizer": "AdamW", "ranks": "1"} for precision in ("bf16", "fp16")]


def _by_turns(job: Job, engine: Any, step: int) -> None:
    _train_only(engine, ("first", "second")[step % 2])
    job.train(engine, step, lambda batch: job.loss(engine, batch, True))


@scenario("two halves are trained alternately, and the job is resumed between two steps", pinned=_ALONE)
def by_turns_resumed(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        _by_turns(job, engine, step)
    job.save(engine, "half")
    _by_turns(job, engine, 3)
    job.load(engine, "half")
    for step in range(3, 6):
        _by_turns(job, engine, step)


@scenario("two halves are trained alternately by an optimizer that needs every gradient", stage="0", pinned=_ALONE[:1])
def by_turns_without_none(job: Job) -> None:
    torch = job.torch

    class Plain(torch.optim.SGD):  # type: ignore[misc,name-defined,unused-ignore]
        """A step of SGD that requires a gradient for every parameter."""

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for parameter in (each for group in self.param_groups for each in group["params"]):
                    if job.plain and parameter.grad is None:
                        continue
                    parameter.sub_(parameter.grad.to(parameter.dtype), alpha=0.1)

    engine = job.engine(job.Branches(), optimizer=lambda parameters: Plain(parameters, lr=0.1))
    for step in range(6):
        _by_turns(job, engine, step)


@scenario("frozen between the backward pass and the step, which still runs", stage="0", accumulation="1", pinned=_ALONE)
def frozen_before_the_step(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):

        def backward(loss: Any) -> None:
            engine.backward(loss)
            engine.module.blocks[0].requires_grad_(False)

        engine.module.requires_grad_(True)
        job.train(engine, step, backward=backward)


@scenario("frozen from the start, written to by the script, then trained", stage="0", pinned=_ALONE)
def written_then_thawed(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    engine = job.engine(model)
    for step in range(5):
        if step == 2:
            with job.torch.no_grad():
                for parameter in engine.module.blocks[0].parameters():
                    parameter.mul_(0.5)
        if step == 3:
            engine.module.requires_grad_(True)
        job.train(engine, step)


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


@scenario("a branch is used only by rank 0's first micro-batch")
@settings(pinned=_OVERLAP, stage="01", ranks=_SEVERAL, accumulation="23")
def by_one_rank_in_first_microbatch(job: Job) -> None:
    _branches(job, lambda _, micro: job.rank == 0 and micro == 0)


@scenario("a branch is used by rank 0's first and the other ranks' last micro-batch")
@settings(stage="0", ranks=_SEVERAL, accumulation="23")
def by_ranks_in_other_microbatches(job: Job) -> None:
    _branches(job, lambda _, micro: micro == 0 if job.rank == 0 else micro + 1 == job.accumulation)


@scenario("a branch that the rank does not need is multiplied by zero, as scripts do for ZeRO-3")
@settings(
    works_around=("bf16_zero1_norm_of_used", "zero12_offload_left_out_gradients", "zero1_overlap_left_out_microbatch"),
    ranks=_SEVERAL,
)
def times_zero(job: Job) -> None:
    model = job.model(
        lambda self, x, weight: self.first(x) + weight * self.second(x), first=job.MLP(), second=job.MLP()
    )
    engine = job.engine(model)
    weights = iter([float(number % job.world_size == job.rank) for number in range(100)])
    job.steps(engine, range(4), lambda batch: job.loss(engine, batch, next(weights)))


def _layers_dropped(job: Job, drawn: Any) -> None:
    nn = job.torch.nn

    def forward(self: Any, x: Any, kept: int) -> Any:
        for number, layer in enumerate(self.layers):
            if kept >> number & 1:
                x = x + layer(x).tanh()
        return self.head(x)

    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    engine = job.engine(job.model(forward, layers=layers, head=nn.Linear(16, 1)))
    job.steps(engine, range(5), lambda batch: job.loss(engine, batch, next(drawn)))


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
    job.steps(engine, range(4))


@scenario("a layer that is never used is a separate group")
def unused_group(job: Job) -> None:
    nn = job.torch.nn
    inner, spare = job.MLP(), nn.Linear(16, 16)
    model = job.model(lambda self, x: self.inner(x), inner=inner, spare=spare)
    engine = job.engine(model, [{"params": list(each.parameters())} for each in (inner, spare)])
    job.steps(engine, range(4))


def _with_parameter(job: Job, value: Any, forward: Any) -> None:
    model = job.model(forward, extra=job.torch.nn.Parameter(value), inner=job.MLP())
    engine = job.engine(model)
    job.steps(engine, range(4))


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
