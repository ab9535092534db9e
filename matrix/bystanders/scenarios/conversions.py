"""Checkpoints for a different number of ranks, a different engine or writer: universal, elastic, by a writer."""

from __future__ import annotations

import argparse
import importlib
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ADAM = ("AdamW", "client's AdamW")  # with ZeRO-3 DeepSpeed looks for its moments
_ZERO: Any = {"stage": "123", "optimizer": _ADAM}
_UNIVERSAL = {"load_universal": True}


def _convert(job: Job, tag: str) -> str:
    """On rank 0, with DeepSpeed's tool; returns the new tag."""
    if job.plain:
        return tag
    job.torch.distributed.barrier()
    if job.rank == 0:
        folder = job.tmp / "checkpoint"
        importlib.import_module("deepspeed.checkpoint.ds_to_universal").main(
            argparse.Namespace(
                input_folder=str(folder / tag),
                output_folder=str(folder / f"{tag}_universal"),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )
    job.torch.distributed.barrier()
    return f"{tag}_universal"


def _universal(job: Job, make: Any, then: dict[str, Any] | None = None) -> None:
    """make: (seed, config) -> an engine. then: config changes for the engine that loads it."""
    configs: Any = {}, {"checkpoint": _UNIVERSAL, **(then or {})}
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        job.resume(lambda number: make(number, configs[number]), lambda tag: _convert(job, tag))


@scenario(
    "training resumes from a universal checkpoint",
    pinned=[{"stage": "3", "optimizer": "AdamW"}, {"stage": "1", "optimizer": "AdamW"}],
    works_around=("universal_checkpoint_weights_only",),
    **_ZERO,
)
def universal(job: Job) -> None:
    _universal(job, lambda seed, config: job.engine(job.MLP(seed=seed), **config))


@scenario(
    "a universal checkpoint with two groups that have equal settings",
    pinned=[{"stage": "3", "optimizer": "AdamW", "ranks": "1"}],
    **_ZERO,
)
def universal_two_groups(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
        return job.engine(model, groups, **config)

    _universal(job, make)


@scenario(
    "a universal checkpoint is loaded into smaller sub-groups",
    pinned=[{"stage": "3", "optimizer": "AdamW"}],
    stage="3",
    optimizer=_ADAM,
)
def universal_in_sub_groups(job: Job) -> None:
    _universal(
        job,
        lambda seed, config: job.engine(job.MLP(seed=seed), **config),
        {"zero_optimization": {"sub_group_size": 200}},
    )


@scenario(
    "a universal checkpoint of a model that is half frozen",
    pinned=[{"stage": "2", "optimizer": "AdamW"}],
    works_around=("universal_checkpoint_leaves_frozen",),
    **_ZERO,
)
def universal_frozen(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        for parameter, first in zip(model.blocks[0].parameters(), job.MLP().blocks[0].parameters()):
            parameter.data.copy_(first.data)
            parameter.requires_grad_(False)
        return job.engine(model, [each for each in model.parameters() if each.requires_grad], **config)

    _universal(job, make)


_ROUND: Any = {"ranks": ("2",), "accumulation": ("1",), **_ZERO}


def _restart(job: Job, ranks: int) -> None:
    """As a rank of a job of that many, alone or with the other: DeepSpeed drops its existing process groups."""
    distributed = job.torch.distributed
    distributed.destroy_process_group()
    comm: Any = importlib.import_module("deepspeed.comm.comm")
    comm.cdb = None
    groups: Any = importlib.import_module("deepspeed.utils.groups")
    groups._WORLD_GROUP = groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    store = distributed.HashStore() if ranks == 1 else distributed.FileStore(str(job.tmp / "both"), ranks)
    os.environ["WORLD_SIZE"] = str(ranks)
    distributed.init_process_group("gloo", store=store, rank=job.rank % ranks, world_size=ranks)
    job._lab.deepspeed.init_distributed("gloo", verbose=False)


def _steps(job: Job, engine: Any, ranks: int, steps: range) -> None:
    """On one rank, the batches of both."""
    from dsfix.lab.models import regression_batch

    for step in steps:
        batches = [regression_batch(rank, step) for rank in ([0, 1] if ranks == 1 else [job.rank])]
        inputs, targets = (job.torch.cat(each).to(job.device) for each in zip(*batches))
        engine.backward(job.loss(engine, (inputs.to(job.dtype), targets)))
        engine.step()
        job.look(engine, f"step {step}")


def _on_other_ranks(job: Job, before: int, after: int) -> None:
    def start(seed: int, **config: Any) -> Any:
        return job.engine(job.MLP(seed=seed), **config)

    if job.plain:
        before = after = 2
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        if before == 1:
            _restart(job, 1)
        engine, tag = start(0), "two" if job.plain else "two_universal"
        _steps(job, engine, before, range(2))
        if job.rank < before:
            job.save(engine, "two")
            _convert(job, "two")
        if before != after:
            _restart(job, after)
        engine = start(1, checkpoint=_UNIVERSAL)
        job.load(engine, tag)
        _steps(job, engine, after, range(2, 4))


@scenario(
    "one rank resumes from a universal checkpoint of two", pinned=[{"stage": "1", "optimizer": "AdamW"}], **_ROUND
)
def universal_on_fewer_ranks(job: Job) -> None:
    _on_other_ranks(job, 2, 1)


@scenario(
    "two ranks resume from a universal checkpoint of one", pinned=[{"stage": "3", "optimizer": "AdamW"}], **_ROUND
)
def universal_on_more_ranks(job: Job) -> None:
    _on_other_ranks(job, 1, 2)


def _counted(job: Job) -> Any:
    """An optimizer that counts steps in its groups, as DeepSpeed's own and apex's do."""

    class Counted(job.torch.optim.SGD):  # type: ignore[name-defined,misc]
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
            return super().step(closure)

    return lambda given: Counted(given, lr=0.05, momentum=0.9)


_ELASTIC: Any = {"zero_optimization": {"elastic_checkpoint": True}}
_ONE_OR_TWO: Any = {"stage": "12", "offload": ("none",), "optimizer": ("client's SGD",)}


@scenario(
    "elastic_checkpoint with an optimizer that counts steps in its groups",
    pinned=[{"stage": "1", "optimizer": "client's SGD"}],
    **_ONE_OR_TWO,
)
def elastic(job: Job) -> None:
    _elastic(job, _ELASTIC)


@scenario(
    "elastic_checkpoint is turned off before loading",
    pinned=[{"stage": "2", "optimizer": "client's SGD"}],
    **_ONE_OR_TWO,
)
def elastic_turned_off(job: Job) -> None:
    _elastic(job, {})


def _elastic(job: Job, then: dict[str, Any]) -> None:
    configs = _ELASTIC, then
    job.resume(lambda number: job.engine(job.MLP(seed=number), optimizer=_counted(job), **configs[number]))


@scenario("torch's AdamW resumes from an elastic checkpoint", stage="12", optimizer=_ADAM)
def elastic_adamw(job: Job) -> None:
    job.resume(lambda seed: job.engine(job.MLP(seed=seed), **_ELASTIC))


@scenario(
    "a checkpoint writer, in an environment that makes torch.load unpickle",
    pinned=[{"stage": "1"}],
    stage="123",
    works_around=("checkpoint_writer_weights_only", "checkpoint_weights_only"),
)
def writer(job: Job) -> None:
    config: Any = {"checkpoint": {"writer": {"type": "PYTHON", "decoupled": False, "data_parallel": "replica"}}}
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1", CROSS_RANK="0", CROSS_SIZE="1"):
        job.resume(lambda seed: job.engine(job.MLP(seed=seed), **config))


@scenario("parameters are fetched by all_reduce", stage="3", pinned=[{"stage": "3", "partitioning": "all"}])
def fetched_by_all_reduce(job: Job) -> None:
    """Sizes are multiples of the number of ranks, except for the head's bias."""
    engine = job.engine(job.MLP(), zero_optimization={"stage3_use_all_reduce_for_fetch_params": True})
    for step in range(4):
        job.train(engine, step)


@scenario(
    "optimizer, gradients and weights are moved to the host and back between two steps",
    pinned=[{"stage": "2", "optimizer": "AdamW"}],
    stage="12",  # with ZeRO-3 only for FusedAdam
    offload=("none",),
    optimizer=_ADAM,
)
def moved_and_back(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        if not job.plain:
            engine.offload_states()
            engine.reload_states()
        job.look(engine, f"after step {step}")
