"""Universal checkpoints and other conversions."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import engines, experts, pipelines

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


@scenario("training resumes from a universal checkpoint")
@settings(
    pinned=[{"stage": "3", "optimizer": "AdamW"}, {"stage": "1", "optimizer": "AdamW"}],
    works_around=("universal_checkpoint_weights_only",),
    **_ZERO,
)
def universal(job: Job) -> None:
    _universal(job, lambda seed, config: job.engine(job.MLP(seed=seed), **config))


@scenario("a universal checkpoint with two groups that have equal settings")
@settings(pinned=[{"stage": "3", "optimizer": "AdamW", "ranks": "1"}], **_ZERO)
def universal_two_groups(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
        return job.engine(model, groups, **config)

    _universal(job, make)


@scenario("a universal checkpoint is loaded into smaller sub-groups")
@settings(pinned=[{"stage": "3", "optimizer": "AdamW"}], stage="3", optimizer=_ADAM)
def universal_in_sub_groups(job: Job) -> None:
    _universal(
        job,
        lambda seed, config: job.engine(job.MLP(seed=seed), **config),
        {"zero_optimization": {"sub_group_size": 200}},
    )


@scenario("a universal checkpoint of a model that is half frozen")
@settings(pinned=[{"stage": "2", "optimizer": "AdamW"}], works_around=("universal_checkpoint_leaves_frozen",), **_ZERO)
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


@scenario("one rank resumes from a universal checkpoint of two")
@settings(pinned=[{"stage": "1", "optimizer": "AdamW"}], **_ROUND)
def universal_on_fewer_ranks(job: Job) -> None:
    _on_other_ranks(job, 2, 1)


@scenario("two ranks resume from a universal checkpoint of one")
@settings(pinned=[{"stage": "3", "optimizer": "AdamW"}], **_ROUND)
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


@scenario("elastic_checkpoint with an optimizer that counts steps in its groups")
@settings(pinned=[{"stage": "1", "optimizer": "client's SGD"}], **_ONE_OR_TWO)
def elastic(job: Job) -> None:
    _elastic(job, _ELASTIC)


@scenario("elastic_checkpoint is turned off before loading")
@settings(pinned=[{"stage": "2", "optimizer": "client's SGD"}], **_ONE_OR_TWO)
def elastic_turned_off(job: Job) -> None:
    _elastic(job, {})


def _elastic(job: Job, then: dict[str, Any]) -> None:
    configs = _ELASTIC, then
    job.resume(lambda number: job.engine(job.MLP(seed=number), optimizer=_counted(job), **configs[number]))


@scenario("torch's AdamW resumes from an elastic checkpoint", stage="12", optimizer=_ADAM)
def elastic_adamw(job: Job) -> None:
    job.resume(lambda seed: job.engine(job.MLP(seed=seed), **_ELASTIC))


@scenario("a checkpoint writer, in an environment that makes torch.load unpickle")
@settings(
    pinned=[{"stage": "1"}], stage="123", works_around=("checkpoint_writer_weights_only", "checkpoint_weights_only")
)
def writer(job: Job) -> None:
    config: Any = {"checkpoint": {"writer": {"type": "PYTHON", "decoupled": False, "data_parallel": "replica"}}}
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1", CROSS_RANK="0", CROSS_SIZE="1"):
        job.resume(lambda seed: job.engine(job.MLP(seed=seed), **config))


@scenario("parameters are fetched by all_reduce", stage="3", pinned=[{"stage": "3", "partitioning": "all"}])
def fetched_by_all_reduce(job: Job) -> None:
    """Sizes are multiples of the number of ranks, except for the head's bias."""
    engine = job.engine(job.MLP(), zero_optimization={"stage3_use_all_reduce_for_fetch_params": True})
    job.steps(engine, range(4))


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


# what older releases expect of the script
_STATE = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}, "iteration": 1}


@scenario("a checkpoint is converted into a universal one, whose files are read")
@settings(
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "4"}], stage="12", ranks=("2", "4"), optimizer=("AdamW",)
)
def converted_to_universal(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    # as many elements as ranks share without padding, with which older releases cannot convert torch's optimizers
    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 16)))
    job.steps(engine, range(2))
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        found = job.weights(engine) if job.plain else _converted(job, engine)
    for name, weight in sorted(found.items()):
        job.note(f"converted: {name}", weight)
    job.train(engine, 2)


def _converted(job: Job, engine: Any) -> dict[str, Any]:
    """The weights, on rank 0; the moments are noted as well."""
    folder = job.tmp / "checkpoint"
    engine.save_checkpoint(str(folder), tag="two", client_state=_STATE)
    job.torch.distributed.barrier()
    if job.rank:
        return {}
    for layer in range(1, 4):  # older releases know checkpoints of pipelines only
        job.torch.save({}, folder / "two" / f"layer_0{layer}-model_00-model_states.pt")
    tool: Any = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    words = ["--input_folder", str(folder / "two"), "--output_folder", str(folder / "universal")]
    words += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    # one worker is this process; in older releases it is another one, where nobody sees the patch's lines run
    older = mock.patch.object(tool.multiprocessing, "Pool", ThreadPool) if hasattr(tool, "multiprocessing") else None
    with mock.patch.object(sys, "argv", ["ds_to_universal.py", *words]), older or contextlib.nullcontext():
        tool.main(*[tool.parse_arguments()] * len(inspect.signature(tool.main).parameters))
    found = {}
    for path in sorted((folder / "universal" / "zero").glob("*/*.pt")):
        content = job.torch.load(path, map_location="cpu")
        part = content["param"] if isinstance(content, dict) else content
        if path.stem == "fp32":
            found[path.parent.name] = part
        else:
            job.bits(f"converted: {path.stem} of {path.parent.name}", part)
    return found


_UP_TO_TWO: Any = {"stage": "12", "optimizer": ("AdamW", "client's AdamW")}
_WHOLE_FILES = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def _go_on(job: Job, make: Callable[..., Any], train: Callable[[Any, int], None]) -> None:
    """Two steps, then two more by an engine that loads their checkpoint.

    make: (seed, config) -> an engine. train: (engine, step) runs one optimizer step.
    """
    engine = make(0)
    for step in range(2):
        train(engine, step)
    with mock.patch.dict(os.environ, _WHOLE_FILES):
        job.save(engine, "two")
        tag = _convert(job, "two")
        engine = make(1, checkpoint={"load_universal": True})
        job.load(engine, tag)
    for step in range(2, 4):
        train(engine, step)


@scenario("a universal checkpoint of a model whose head and embedding share a weight")
@settings(
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "4"}], stage="123", optimizer=("AdamW", "client's AdamW")
)
def universal_tied(job: Job) -> None:
    def make(_: int, **config: Any) -> Any:
        model = job.Transformer()
        model.head.weight = model.tokens.weight
        return job.engine(model, **config)

    _go_on(job, make, job.train_on_tokens)


@scenario("a universal checkpoint of a model that uses one block three times")
@settings(pinned=[{"stage": "2", "optimizer": "AdamW", "ranks": "4"}], **_UP_TO_TWO)
def universal_block_three_times(job: Job) -> None:
    def make(seed: int, **config: Any) -> Any:
        nn = job.torch.nn
        job.torch.manual_seed(seed)
        forward = lambda self, x: self.head(self.block(self.block(self.block(x))))  # noqa: E731
        block = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())
        return job.engine(job.model(forward, block=block, head=nn.Linear(16, 1)), **config)

    _go_on(job, make, job.train)


@scenario("a universal checkpoint of an MoE model")
@settings(pinned=[{"stage": "1", "optimizer": "AdamW"}], **{**experts._FITS, **_UP_TO_TWO})
def universal_experts(job: Job) -> None:
    def make(_: int, **config: Any) -> Any:
        model = experts._model(job, 1, experts._EXPERTS)
        parameters: Any = list(model.parameters())
        if not job.plain:
            utils = importlib.import_module("deepspeed.moe.utils")
            parameters = utils.split_params_into_different_moe_groups_for_optimizer(
                {"params": parameters, "name": "all"}
            )
        return job.engine(model, parameters, **config)

    _go_on(job, make, job.train)


@scenario("a universal checkpoint of a pipeline")
@settings(
    pinned=[{"stage": "1", "accumulation": "2", "optimizer": "AdamW"}],
    **{**pipelines._FITS, "stage": "1", "optimizer": ("AdamW",)},
)
def universal_pipeline(job: Job) -> None:
    _go_on(
        job,
        lambda seed, **config: pipelines._pipeline(job, config, 2, seed),
        lambda engine, step: pipelines._step(job, engine, step),
    )


@scenario(
    "an engine returns to a universal checkpoint between two micro-batches",
    pinned=[{"stage": "1", "optimizer": "AdamW", "accumulation": "2"}],
    reference=False,  # DeepSpeed keeps the round's gradients across a load
    stage="1",
    offload=("none",),
    precision=("fp32",),
    accumulation=("2", "3"),
    optimizer=("AdamW", "client's AdamW"),
)
def universal_within_a_round(job: Job) -> None:
    def within(engine: Any) -> None:
        engine.backward(job.loss(engine, job.batch(100)))
        engine.step()

    engine = job.engine(job.MLP())
    job.train(engine, 0)
    with mock.patch.dict(os.environ, _WHOLE_FILES):
        job.save(engine, "one")
        tag = _convert(job, "one")
        engine = job.engine(job.MLP(seed=1), checkpoint={"load_universal": True})
        within(engine)
        job.load(engine, tag)
    job.steps(engine, range(1, 4))


_FITS: Any = {
    "stage": "12",
    "offload": ("none",),
    "ranks": ("1", "2"),
    "optimizer": ("AdamW",),
    "partitioning": ("parameters persist",),
}
_ROUND_BY_MPU: Any = {**_FITS, "ranks": ("2",), "accumulation": ("1",), "precision": ("fp32",)}


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
    model = engines._model(job, seed)
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
        _restart(job, before)
    engine = _start(job, 0, before, optimizer)
    _steps_by_mpu(job, engine, before, range(2))
    if job.plain:
        engine.save("two")
    elif job.rank < before:
        state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}, "iteration": 2}
        engine.save_checkpoint(folder, tag="two", client_state=state)
        job.torch.distributed.barrier()
        if job.rank == 0:
            pipelines._convert(job, "two")
        job.torch.distributed.barrier()
    if before != after:
        _restart(job, after)
    engine = _start(job, 1, after, optimizer, checkpoint={"load_universal": True})
    if job.plain:
        engine.load("two")
    else:
        engine.load_checkpoint(folder, tag="two_universal", load_optimizer_states=load_optimizer)
    _steps_by_mpu(job, engine, after, range(2, 4))


def _steps_by_mpu(job: Job, engine: Any, ranks: int, steps: range) -> None:
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


@scenario("a job with an mpu resumes from a universal checkpoint")
@settings(
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


@scenario("a job with an mpu resumes from a universal checkpoint, with an optimizer that counts steps and calls")
@settings(
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
    "a job with an mpu loads a universal checkpoint without the optimizer's states, which DeepSpeed loads nevertheless"
)
@settings(pinned=[{"stage": "2", "optimizer": "AdamW"}], **{**_FITS, "precision": ("fp32",), "accumulation": ("1",)})
def universal_with_mpu_weights(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, job.world_size, job.world_size, load_optimizer=False)


@scenario("one rank with an mpu resumes from a universal checkpoint of two")
@settings(pinned=[{"stage": "1", "optimizer": "AdamW"}], **_ROUND_BY_MPU)
def universal_with_mpu_on_fewer_ranks(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, 2, 1)


@scenario("two ranks with an mpu resume from a universal checkpoint of one")
@settings(pinned=[{"stage": "2", "optimizer": "AdamW"}], **_ROUND_BY_MPU)
def universal_with_mpu_on_more_ranks(job: Job) -> None:
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        _resumed(job, 1, 2)
