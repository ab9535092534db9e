"""Ulysses' adapter of a DataLoader: each sample's sequence is split over the ranks."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

# there is no engine: one job
_HERE: Any = {
    **{"stage": "0", "offload": ("none",), "precision": ("fp32",), "ranks": ("2",), "accumulation": ("1",)},
    **{"clipping": ("off",), "optimizer": ("SGD",), "overlap_comm": ("unset",), "buckets": ("large",)},
    "partitioning": ("parameters persist",),
}
_BATCHES, _LENGTH = 3, 8


def _data(job: Job, rank: int) -> Any:
    """The batches of one rank's DataLoader."""
    torch = job.torch
    tokens = torch.arange(_BATCHES * _LENGTH).view(_BATCHES, 1, _LENGTH) + 1000 * rank
    return [{"input_ids": each, "labels": each, "position_ids": torch.arange(_LENGTH)[None]} for each in tokens]


def _loader(job: Job) -> Any:
    """What a script iterates over; None where the release has no adapter."""
    try:
        module: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
        adapter = module.UlyssesSPDataLoaderAdapter
    except (ImportError, AttributeError):
        job.bits("UlyssesSPDataLoaderAdapter", "is not there")
        return None
    loader = job.torch.utils.data.DataLoader(_data(job, job.rank), batch_size=None)
    return adapter(loader, job.rank, job.torch.distributed.group.WORLD, job.world_size, job.device)


def _gloo(job: Job) -> Any:
    """gloo refuses to gather a number into vectors of one element, which NCCL accepts."""
    distributed = job.torch.distributed

    def all_gather(gathered: Any, tensor: Any, group: Any = None) -> None:
        distributed.all_gather(gathered, tensor.reshape(gathered[0].shape), group=group)

    module = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    options = SimpleNamespace(all_gather=all_gather, all_gather_object=distributed.all_gather_object)
    return mock.patch.object(module, "dist", options)


def _parts(job: Job) -> Iterator[Any]:
    """In plain PyTorch: this rank's part of the batches of both ranks, in turn."""
    both = [_data(job, rank) for rank in range(2)]
    for number in range(_BATCHES):
        for rank in range(2):
            batch = dict(both[rank][number])
            labels = job.torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)[..., 1:]
            batch["shift_labels"] = labels
            yield {name: each.chunk(2, 1)[job.rank] for name, each in batch.items()}


def _note(job: Job, label: str, batch: Any) -> None:
    for name, value in sorted(batch.items()):
        job.note(f"{label}: {name}", value)


@scenario("one epoch with Ulysses' adapter of a DataLoader", **_HERE)
def ulysses_one_epoch(job: Job) -> None:
    loader = _parts(job) if job.plain else _loader(job)
    if loader is None:
        return
    with contextlib.nullcontext() if job.plain else _gloo(job):
        for number, batch in enumerate(loader):
            _note(job, f"batch {number}", batch)


@scenario("a loop over Ulysses' adapter of a DataLoader is left early, and another goes on", **_HERE)
def ulysses_epoch_in_two_loops(job: Job) -> None:
    loader = _parts(job) if job.plain else _loader(job)
    if loader is None:
        return
    with contextlib.nullcontext() if job.plain else _gloo(job):
        for number, batch in zip(range(3), loader):
            _note(job, f"first, batch {number}", batch)
        for number, batch in zip(range(2), loader):
            _note(job, f"second, batch {number}", batch)
