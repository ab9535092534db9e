"""Universal checkpoints of jobs with an mpu, which old releases need to load them, on as many ranks and on others."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import conversions, pipelines_universal, second_copies

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {
    "stage": "12",
    "offload": ("none",),
    "ranks": ("1", "2"),
    "optimizer": ("AdamW",),
    "partitioning": ("parameters persist",),
}
_ROUND: Any = {**_FITS, "ranks": ("2",), "accumulation": ("1",), "precision": ("fp32",)}


def _mpu(job: Job, rank: int, ranks: int) -> Any:
    """Of ranks that are data-parallel, and nothing else."""
    new = job.torch.distributed.new_group
    alone, everyone = [new([each]) for each in range(ranks)][rank], new(list(range(ranks)))
    return SimpleNamespace(
        get_model_parallel_rank=lambda: 0,
        get_model_parallel_world_size=lambda: 1,
        get_model_parallel_group=lambda: alone,
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
        get_tensor_model_parallel_group=lambda: alone,
        get_slice_parallel_rank=lambda: 0,
        get_slice_parallel_world_size=lambda: 1,
        get_slice_parallel_group=lambda: alone,
        get_data_parallel_rank=lambda: rank,
        get_data_parallel_world_size=lambda: ranks,
        get_data_parallel_group=lambda: everyone,
    )


def _start(job: Job, seed: int, ranks: int, optimizer: Callable[[Any], Any] | None = None, **config: Any) -> Any:
    model = second_copies._model(job, seed)
    if job.plain:
        return job.engine(model, optimizer=optimizer)
    with job.torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(job.dtype))
    whole, given = space.config(job.setting), list(model.parameters())
    space._merge(whole, config)
    arguments: dict[str, Any] = {"model_parameters": given}
    if optimizer:
        whole.pop("optimizer", None)
        arguments["optimizer"] = optimizer(given)
    assert job._lab.deepspeed
    job._lab.deepspeed.init_distributed(verbose=False)
    return job._lab.initialize(model, whole, mpu=_mpu(job, job.rank % ranks, ranks), **arguments)


def _resumed(
    job: Job, before: int, after: int, optimizer: Callable[[Any], Any] | None = None, load_optimizer: bool = True
) -> None:
    """Two steps, then two more by an engine that loads their universal checkpoint; on that many ranks."""
    if job.plain:
        before = after = job.world_size
    folder = str(job.tmp / "checkpoint")
    if before < job.world_size:
        conversions._restart(job, before)
    engine = _start(job, 0, before, optimizer)
    _steps(job, engine, before, range(2))
    if job.plain:
        engine.save("two")
    elif job.rank < before:
        state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}, "iteration": 2}
        engine.save_checkpoint(folder, tag="two", client_state=state)
        job.torch.distributed.barrier()
        if job.rank == 0:
            pipelines_universal._convert(job, "two")
        job.torch.distributed.barrier()
    if before != after:
        conversions._restart(job, after)
    engine = _start(job, 1, after, optimizer, checkpoint={"load_universal": True})
    if job.plain:
        engine.load("two")
    else:
        engine.load_checkpoint(folder, tag="two_universal", load_optimizer_states=load_optimizer)
    _steps(job, engine, after, range(2, 4))


def _steps(job: Job, engine: Any, ranks: int, steps: range) -> None:
    """On fewer ranks than there are, each has the batches of all."""
    from dsfix.lab.models import regression_batch

    for step in steps:
        for micro in range(job.accumulation):
            mine = [job.rank] if ranks == job.world_size else range(job.world_size)
            batches = [regression_batch(rank, step * job.accumulation + micro) for rank in mine]
            inputs, targets = (job.torch.cat(each).to(job.device) for each in zip(*batches))
            engine.backward(job.loss(engine, (inputs.to(job.dtype), targets)))
            engine.step()
        for name, parameter in job.weights(engine).items():
            job.note(f"step {step}: {name}", parameter)
        job.note(f"step {step}: the group's count", engine.optimizer.param_groups[0].get("step"))


@scenario(
    "a job with an mpu resumes from a universal checkpoint",
    pinned=[
        {"stage": "1", "optimizer": "AdamW"},
        {"stage": "2", "ranks": "1", "optimizer": "AdamW"},
        {"stage": "1", "precision": "bf16, fp32 accumulation", "optimizer": "AdamW"},
        {"stage": "2", "precision": "fp16", "accumulation": "2", "optimizer": "AdamW"},
    ],
    **_FITS,
)
def universal_with_mpu(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, job.world_size, job.world_size)


@scenario(
    "a job with an mpu resumes from a universal checkpoint, with an optimizer that counts steps and calls",
    pinned=[{"stage": "1", "optimizer": "client's AdamW"}],
    **{**_FITS, "precision": ("fp32",), "optimizer": ("client's AdamW",)},
)
def universal_with_mpu_counting(job: Job) -> None:
    class Counting(job.torch.optim.AdamW):  # type: ignore[name-defined,misc,unused-ignore]
        def step(self, closure: Any = None) -> Any:
            self.state["calls"] = self.state.get("calls", 0) + 1
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
            return super().step(closure)

        def state_dict(self) -> Any:  # the conversion takes tensors' states only
            found = super().state_dict()
            found["state"].pop("calls", None)
            return found

    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, job.world_size, job.world_size, lambda given: Counting(given, **space.ADAM))


@scenario(
    "a job with an mpu loads a universal checkpoint without the optimizer's states, which DeepSpeed loads nevertheless",
    pinned=[{"stage": "2", "optimizer": "AdamW"}],
    **{**_FITS, "precision": ("fp32",), "accumulation": ("1",)},
)
def universal_with_mpu_weights(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, job.world_size, job.world_size, load_optimizer=False)


@scenario(
    "one rank with an mpu resumes from a universal checkpoint of two",
    pinned=[{"stage": "1", "optimizer": "AdamW"}],
    **_ROUND,
)
def universal_with_mpu_on_fewer_ranks(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, 2, 1)


@scenario(
    "two ranks with an mpu resume from a universal checkpoint of one",
    pinned=[{"stage": "2", "optimizer": "AdamW"}],
    **_ROUND,
)
def universal_with_mpu_on_more_ranks(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, 1, 2)
