"""Models of very many small parameters: in one list, in as many modules, most of them not used, in as many groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_MANY, _MODULES, _USED, _GROUPS, _WIDTH = 400, 150, 8, 30, 16
_FEW: Any = {"ranks": ("1", "2"), "precision": ("fp32", "bf16"), "accumulation": ("1", "2")}


def _weight(job: Job, number: int) -> Any:
    torch = job.torch
    own = torch.randn(_WIDTH, generator=torch.Generator().manual_seed(number))
    return torch.nn.Parameter(own / own.norm())


def _rows(job: Job, number: int) -> Any:
    """A model of modules with a parameter each; its second argument is the slice of those that are used."""

    def forward(module: Any, x: Any, used: slice = slice(None)) -> Any:
        return _mean([row(x) for row in module.rows[used]])

    def of_row(module: Any, x: Any) -> Any:
        return x @ module.weight

    rows = [job.model(of_row, weight=_weight(job, place)) for place in range(number)]
    return job.model(forward, rows=job.torch.nn.ModuleList(rows))


def _mean(columns: list[Any]) -> Any:
    return sum(column.tanh() for column in columns).unsqueeze(1) / len(columns) ** 0.5


def _train(job: Job, model: Any, groups: Any = None, used: Any = None) -> None:
    """used: step -> the rows that its forward passes use; all by default."""
    engine = job.engine(model, groups)
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            value = job.loss(engine, batch, *([used(step)] if used else ()))
            engine.backward(value)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
    job.look(engine, "at the end")


@scenario("one list has 400 parameters", pinned=[{"stage": "3"}], **_FEW)
def in_one_list(job: Job) -> None:
    def forward(module: Any, x: Any) -> Any:
        return _mean([x @ weight for weight in module.many])

    many = job.torch.nn.ParameterList([_weight(job, number) for number in range(_MANY)])
    _train(job, job.model(forward, many=many))


@scenario("150 modules have a parameter each", pinned=[{"stage": "3", "offload": "optimizer"}], **_FEW)
def in_many_modules(job: Job) -> None:
    _train(job, _rows(job, _MODULES))


@scenario("8 of 400 modules are ever used", pinned=[{"stage": "2", "offload": "optimizer"}], **_FEW)
def mostly_unused(job: Job) -> None:
    _train(job, _rows(job, _MANY), used=lambda _: slice(_USED))


@scenario("30 parameters have a group each, every third is frozen", pinned=[{"stage": "3"}], **_FEW)
def in_many_groups(job: Job) -> None:
    model = _rows(job, _GROUPS)
    for row in model.rows[::3]:
        row.requires_grad_(False)
    groups = [{"params": [row.weight], "lr": 0.01 * (1 + number % 7)} for number, row in enumerate(model.rows)]
    _train(job, model, groups)
