"""Parameters frozen temporarily or permanently."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

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


@scenario(
    "two halves are trained alternately, without momentum and weight decay", pinned=_ONE_RANK[::2], optimizer=["SGD"]
)
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


@scenario(
    "the first and last layers are always trained, plus one block that changes every second step, as in LISA",
    pinned=_ONE_RANK,
)
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
    for step in range(5):
        job.train(engine, step)


@scenario("LoRA: the optimizer is given only the trained parameters", works_around=("frozen_parameters_decayed",))
def adapter_alone(job: Job) -> None:
    model = _with_adapter(job)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    for step in range(5):
        job.train(engine, step)


@scenario("LoRA: the adapter is one group, the frozen base another", stage="0")
def adapter_and_base_groups(job: Job) -> None:
    model = _with_adapter(job)
    adapters = [*model.down.parameters(), *model.up.parameters()]
    engine = job.engine(model, [{"params": adapters, "lr": 0.02}, {"params": list(model.base.parameters())}])
    for step in range(5):
        job.train(engine, step)


@scenario(
    "a frozen target network is the student of two steps ago, copied by the script", pinned=_ONE_RANK, stage="012"
)
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
