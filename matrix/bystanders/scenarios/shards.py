"""MiCS: ZeRO-3 within groups of ranks that hold the same weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {"stage": "3", "offload": ("none",)}


def _model(job: Job) -> Any:
    """The number of elements of each parameter is a multiple of four ranks."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    return job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 4))


def _trained(job: Job, size: int, **options: Any) -> None:
    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # scaling the gradients is compiled on first use
    with _coalesced(job):
        engine = job.engine(_model(job), zero_optimization={"mics_shard_size": size, **options})
        if job.world_size > size and hasattr(getattr(engine, "optimizer", None), "_get_param_partition_rank"):
            return  # 0.19.6 hangs: by that rank, only the first of several groups has gradients to reduce
        for step in range(3):
            job.train(engine, step)


@contextmanager
def _coalesced(job: Job) -> Iterator[None]:
    """gloo has no coalescing manager of its own."""
    collectives: Any = job.torch.distributed.distributed_c10d
    manager = collectives._coalescing_manager

    def without_device(group: Any, device: Any = None, async_ops: bool = False) -> Any:
        return manager(group, async_ops=async_ops)

    with mock.patch.object(collectives, "_coalescing_manager", without_device):
        yield


@scenario(
    "MiCS in groups of two ranks",
    pinned=[{"stage": "3", "partitioning": "all"}, {"stage": "3", "ranks": "4", "partitioning": "all"}],
    ranks=("2", "4"),
    **_FITS,
)
def mics(job: Job) -> None:
    _trained(job, 2)


@scenario(
    "MiCS in a group of two ranks resumes from a checkpoint",
    pinned=[{"stage": "3", "partitioning": "all"}],
    ranks=("2",),
    **_FITS,
)
def mics_resumed(job: Job) -> None:
    def make(seed: int) -> Any:
        model = _model(job)
        with job.torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + seed)
        return job.engine(model, zero_optimization={"mics_shard_size": 2})

    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # scaling the gradients is compiled on first use
    with _coalesced(job):
        job.resume(make)


@scenario("MiCS on one rank", ranks=("1",), **_FITS)
def mics_on_one_rank(job: Job) -> None:
    _trained(job, 1)


@scenario(
    "MiCS in one group of four ranks, which are two nodes",
    pinned=[{"stage": "3", "ranks": "4", "partitioning": "all"}],
    ranks=("4",),
    **_FITS,
)
def mics_of_nodes(job: Job) -> None:
    with mock.patch.dict(os.environ, NDEV_PER_NODE="2"):
        _trained(job, 4, mics_hierarchical_params_gather=True)
