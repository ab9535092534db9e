"""Optimizers: client optimizers of all kinds, several groups, rates changed by the script or by torch's schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_CLIENT: dict[str, Any] = {"optimizer": ("client's SGD",)}  # a name only: the scenario passes its own


def _two_groups(model: Any, **first: Any) -> list[dict[str, Any]]:
    """The usual split: one-dimensional parameters do not decay; `first` are options of the weights' group."""
    weights = [each for each in model.parameters() if each.ndim > 1]
    return [
        {"params": weights, **first},
        {"params": [each for each in model.parameters() if each.ndim == 1], "weight_decay": 0.0},
    ]


@scenario("two groups, one without weight decay")
def two_groups(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, _two_groups(model))
    for step in range(3):
        job.train(engine, step)


@scenario("three groups with different rates: two of one parameter each, and the rest")
def three_groups(job: Job) -> None:
    model = job.MLP()
    head = [{"params": [model.head.weight], "lr": 0.02}, {"params": [model.head.bias], "lr": 0.001}]
    engine = job.engine(model, [*head, {"params": list(model.blocks.parameters())}])
    for step in range(3):
        job.train(engine, step)


@scenario("the script changes the rate between steps")
def rate_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        for group in engine.optimizer.param_groups:
            group["lr"] = 0.02 / (step + 1)
        job.train(engine, step)


@scenario("the script changes rate and decay of one of two groups between steps, with a rate of 0 in some")
def decay_by_hand(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, _two_groups(model, lr=0.02))
    for step in range(4):
        group = engine.optimizer.param_groups[0]
        group["lr"], group["weight_decay"] = (0.02, 0.0, 0.01, 0.0)[step], (0.0, 0.1, 0.5, 0.1)[step]
        job.train(engine, step)


@scenario("a group is unfrozen and added to the optimizer during training", stage="0", precision=("fp32",))
def group_added(job: Job) -> None:
    model = job.MLP()
    model.head.requires_grad_(False)
    engine = job.engine(model, list(model.blocks.parameters()))
    for step in range(4):
        if step == 2:
            engine.module.head.requires_grad_(True)
            engine.optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.02})
        job.train(engine, step)


@scenario("a group is added to the client optimizer before the engine is created", **_CLIENT)
def group_added_before(job: Job) -> None:
    model = job.MLP()

    def make(given: list[Any]) -> Any:
        optimizer = job.torch.optim.SGD(given, lr=0.05, momentum=0.9)
        optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.02})
        return optimizer

    engine = job.engine(model, list(model.blocks.parameters()), optimizer=make)
    for step in range(3):
        job.train(engine, step)


@scenario("a torch schedule on the client optimizer, stepped by hand", works_around=("one_cycle_stairs",), **_CLIENT)
def schedule_by_hand(job: Job) -> None:
    made = []

    def make(given: list[Any]) -> Any:
        made.append(job.torch.optim.SGD(given, lr=0.05, momentum=0.9))
        return made[0]

    engine = job.engine(job.MLP(), optimizer=make)
    schedule = job.torch.optim.lr_scheduler.ExponentialLR(made[0], gamma=0.5)
    for step in range(4):
        job.train(engine, step)
        schedule.step()
        job.note(f"step {step}: rate", schedule.get_last_lr()[0])


@scenario("OneCycleLR on the client's Adam, for rate and momentum, stepped by hand", **_CLIENT)
def one_cycle_by_hand(job: Job) -> None:
    made = []

    def make(given: list[Any]) -> Any:
        made.append(job.torch.optim.AdamW(given, lr=0.01, eps=1e-3))
        return made[0]

    model = job.MLP()
    engine = job.engine(model, _two_groups(model), optimizer=make)
    schedule = job.torch.optim.lr_scheduler.OneCycleLR(made[0], max_lr=0.05, total_steps=6)
    for step in range(4):
        job.train(engine, step)
        schedule.step()
        job.note(f"step {step}: rate", schedule.get_last_lr()[0])


def _client(job: Job, make: Callable[[list[Any]], Any]) -> None:
    model = job.MLP().to(job.device)  # before the optimizer is created: Adagrad allocates its sums at once
    engine = job.engine(model, _two_groups(model), optimizer=make)
    for step in range(4):
        job.train(engine, step)


@scenario("the client's SGD with Nesterov momentum", **_CLIENT)
def clients_nesterov(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.SGD(given, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01))


@scenario("the client's Adam with amsgrad", **_CLIENT)
def clients_adam(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.Adam(given, lr=0.01, eps=1e-3, amsgrad=True, weight_decay=0.01))


@scenario("the client's Adagrad", **_CLIENT)
def clients_adagrad(job: Job) -> None:
    _client(
        job,
        lambda given: job.torch.optim.Adagrad(
            given, lr=0.05, lr_decay=0.1, eps=1e-3, initial_accumulator_value=0.1, weight_decay=0.01
        ),
    )


@scenario("the client's RMSprop, centered", **_CLIENT)
def clients_rmsprop(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.RMSprop(given, lr=0.01, eps=1e-2, centered=True, momentum=0.5))


@scenario("the client's NAdam", **_CLIENT)
def clients_nadam(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.NAdam(given, lr=0.01, eps=1e-3, momentum_decay=0.1, weight_decay=0.01))


@scenario("the client's RAdam", **_CLIENT)
def clients_radam(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.RAdam(given, lr=0.02, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.01))


@scenario("the client's ASGD", **_CLIENT)
def clients_asgd(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.ASGD(given, lr=0.05, lambd=0.1, alpha=0.9, t0=1, weight_decay=0.01))


@scenario("the client's Rprop", precision=("fp32",), **_CLIENT)
def clients_rprop(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.Rprop([p for g in given for p in g["params"]], lr=0.01))


@scenario("the client's Adamax", **_CLIENT)
def clients_adamax(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.Adamax(given, lr=0.01, eps=1e-2, weight_decay=0.01))
