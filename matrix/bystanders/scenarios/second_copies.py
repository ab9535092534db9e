"""ZeRO++ hpZ: the ranks of a node keep a second copy of the weights, for the backward pass."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {"stage": "3", "offload": ("none",), "ranks": ("2", "4")}


def _hpz(size: int) -> dict[str, Any]:
    return {"zero_hpz_partition_size": size}


def _model(job: Job, seed: int = 0) -> Any:
    """The number of elements of each parameter is a multiple of four ranks."""
    nn = job.torch.nn
    job.torch.manual_seed(seed)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    return job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 4))


@scenario(
    "ZeRO++ hpZ, in nodes of two ranks",
    pinned=[{"stage": "3", "partitioning": "all"}, {"stage": "3", "ranks": "4", "partitioning": "all"}],
    works_around=("hpz_second_copy_partly_written",),
    **_FITS,
)
def hpz(job: Job) -> None:
    engine = job.engine(_model(job), zero_optimization=_hpz(2))
    for step in range(3):
        job.train(engine, step)


@scenario("ZeRO++ hpZ, with a half that is frozen", **_FITS)
def hpz_frozen(job: Job) -> None:
    model = _model(job)
    for parameter in model.below.parameters():
        parameter.requires_grad_(False)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad], zero_optimization=_hpz(2))
    for step in range(3):
        job.train(engine, step)


def _made(job: Job, model: Any, size: int) -> None:
    """Partitioned by zero.Init before there is an engine."""
    if job.plain:
        return
    linear = job.torch.nn.functional.linear
    config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
    config["zero_optimization"] = {**config["zero_optimization"], **_hpz(size)}
    try:
        job._lab.deepspeed.zero.Init(module=model, config_dict_or_path=config)
    finally:
        job.torch.nn.functional.linear = linear  # zero.Init leaves its own


@scenario("ZeRO++ hpZ, with a model that zero.Init has partitioned", pinned=[{"stage": "3"}], **_FITS)
def hpz_in_init(job: Job) -> None:
    model = _model(job)
    initial = {name: each.detach().to(job._held).float() for name, each in model.named_parameters()}
    _made(job, model, 2)
    engine = job.engine(model, zero_optimization=_hpz(2))
    job._initial[id(engine)] = initial
    for step in range(3):
        job.train(engine, step)


@scenario(
    "ZeRO++ hpZ, and a second zero.Init with nodes of another size",
    reference=False,
    pinned=[{"stage": "3", "ranks": "4"}],
    **{**_FITS, "ranks": ("4",)},
)
def hpz_of_another_size(job: Job) -> None:
    _made(job, _model(job), 2)
    try:
        _made(job, _model(job, seed=1), 4)
    except AssertionError as error:
        job.survived("second zero.Init", error)


@scenario("ZeRO++ hpZ, and a second zero.Init after the process groups were destroyed", reference=False, **_FITS)
def hpz_after_restart(job: Job) -> None:
    _made(job, _model(job), 2)
    distributed = job.torch.distributed
    distributed.destroy_process_group()
    importlib.import_module("deepspeed.comm.comm").cdb = None  # type: ignore[attr-defined]
    importlib.import_module("deepspeed.utils.groups")._WORLD_GROUP = None  # type: ignore[attr-defined]
    store = distributed.FileStore(str(job.tmp / "again"), job.world_size)
    distributed.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world_size)
    job._lab.deepspeed.init_distributed("gloo", verbose=False)
    try:
        _made(job, _model(job, seed=1), 2)
    except Exception as error:
        job.survived("second zero.Init", error)
