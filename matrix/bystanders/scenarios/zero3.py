"""Models that ZeRO-3 partitions as they are made, and parts that a script moves or gathers."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings


# on one rank: nothing initializes the padding of more
@scenario("a model made after a zero.Init, of a class without an __init__ of its own")
@settings(pinned=[{"stage": "3", "ranks": "1"}], stage="123", ranks=("1",))
def made_after_zero_init(job: Job) -> None:
    class Model(job.MLP):  # type: ignore[misc,name-defined,unused-ignore]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    if not job.plain:
        linear = job.torch.nn.functional.linear
        config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
        try:
            with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
                job.torch.nn.Linear(4, 4)
        finally:
            job.torch.nn.functional.linear = linear  # zero.Init leaves its own
    engine = job.engine(Model())
    job.steps(engine, range(3))


_NESTED: Any = {"stage": "3", "precision": ("fp32", "bf16"), "ranks": ("1", "2")}


@contextlib.contextmanager
def _zero_init(job: Job, **options: Any) -> Iterator[None]:
    """zero.Init with the setting's config, or nothing in plain PyTorch."""
    if job.plain:
        yield
        return
    functional = job.torch.nn.functional
    linear = functional.linear
    config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
    try:
        with job._lab.deepspeed.zero.Init(config_dict_or_path=config, **options):
            yield
    finally:
        functional.linear = linear  # zero.Init leaves its own


def _tell(job: Job, label: str, module: Any) -> None:
    """Which parameters are partitioned, and what they are."""
    for name, each in module.named_parameters():
        size = tuple(getattr(each, "ds_shape", each.shape))
        job.bits(f"{label}: {name}", f"{hasattr(each, 'ds_id')} {size} {each.dtype} {each.device.type}")


def _nested_trained(job: Job, model: Any) -> None:
    engine = job.engine(model)
    job.steps(engine, range(3))


def _nested(job: Job) -> Any:
    class Model(job.MLP):  # type: ignore[misc,name-defined,unused-ignore]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    return Model


@scenario("a model made before zero.Inits within each other and after one another, and trained afterwards")
@settings(pinned=[{"stage": "3", "ranks": "1"}], **_NESTED)
def made_before_nested_zero_inits(job: Job) -> None:
    nn, made = job.torch.nn, _nested(job)
    model = made()
    if not job.plain:
        with _zero_init(job):
            _tell(job, "outer", nn.Linear(4, 4))
            with _zero_init(job, remote_device="cpu", dtype=job.torch.bfloat16):
                _tell(job, "inner", nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
            with _zero_init(job, enabled=False):
                _tell(job, "an inner one that is off", nn.Linear(4, 4))
            _tell(job, "outer again", nn.Embedding(4, 4))
        _tell(job, "between", nn.Linear(4, 4))
        with _zero_init(job, remote_device="cpu"):
            _tell(job, "second", nn.utils.skip_init(nn.Linear, 4, 4))
            _tell(job, "second again", nn.Linear(4, 4))
        _tell(job, "after", nn.Linear(4, 4))
    _nested_trained(job, model)


@scenario("a model made after a zero.Init that an error has left, and one within it")
@settings(pinned=[{"stage": "3", "ranks": "1"}], **_NESTED)
def made_after_a_failed_zero_init(job: Job) -> None:
    nn = job.torch.nn

    class Broken(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__(4, 4)
            raise ValueError("broken")

    if not job.plain:
        try:
            with _zero_init(job):
                nn.Linear(4, 4)
                Broken()
        except ValueError as error:
            job.survived("made in it", error)
        with _zero_init(job):
            try:
                with _zero_init(job):
                    Broken()
            except ValueError as error:
                job.survived("made in the inner one", error)
            _tell(job, "outer", nn.Linear(4, 4))
        _tell(job, "after", nn.Linear(4, 4))
    _nested_trained(job, _nested(job)())


@scenario("an engine made within zero.Init, of a model made before it")
@settings(pinned=[{"stage": "3", "ranks": "1"}], **_NESTED)
def engine_made_in_zero_init(job: Job) -> None:
    nn, made = job.torch.nn, _nested(job)
    model = made()
    with _zero_init(job):
        engine = job.engine(model)
        if not job.plain:
            _tell(job, "after the engine", nn.Linear(4, 4))
    if not job.plain:
        _tell(job, "after", made())
    job.steps(engine, range(3))


@scenario("a model of a class that is defined within zero.Init, made there and afterwards")
@settings(pinned=[{"stage": "3", "ranks": "1"}], **_NESTED)
def classes_of_zero_init(job: Job) -> None:
    nn = job.torch.nn

    class Registered(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        """Whose subclasses torch and DeepSpeed do not hear of."""

        known: list[str] = []  # noqa: RUF012

        def __init_subclass__(cls, **options: Any) -> None:
            cls.known.append(cls.__name__)

    found: list[Any] = []
    with _zero_init(job):
        if not job.plain:
            empty = nn.Linear(4, 4, device="meta")

        class Halved(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
            def __init__(self, *sizes: int) -> None:
                super().__init__(*sizes)
                self.half = nn.Linear(*sizes)

        class Again(Halved):
            pass

        class Late(Registered):
            pass

        class Own(Registered):
            def __init__(self, *sizes: int) -> None:
                super().__init__(*sizes)
                self.scale = 2.0

        found += [Halved, Again, Late, Own, type("Made", (nn.LayerNorm,), {})]
        model = _nested(job)
        if not job.plain:
            _tell(job, "made in two steps", empty.to_empty(device="cpu"))
            for each in found:
                _tell(job, f"{each.__name__} within", each(4) if issubclass(each, nn.LayerNorm) else each(4, 4))
    job.bits("known", ", ".join(Registered.known))
    if not job.plain:
        for each in found:
            later = each(4) if issubclass(each, nn.LayerNorm) else each(4, 4)
            _tell(job, f"{each.__name__} afterwards", later)
            job.bits(f"{each.__name__} moved", str(tuple(later.to(job.torch.float64).weight.shape)))
    _nested_trained(job, model())


# on one rank: nothing initializes the padding of more
@scenario("a model made after a zero.Init with a skip_init")
@settings(pinned=[{"stage": "3", "ranks": "1"}], stage="123", ranks=("1",))
def made_after_skip_init(job: Job) -> None:
    if not job.plain:
        functional, utils = job.torch.nn.functional, job.torch.nn.utils
        linear = functional.linear
        config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
        try:
            with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
                utils.skip_init(job.torch.nn.Linear, 4, 4)
        finally:
            functional.linear = linear  # zero.Init leaves its own
    engine = job.engine(job.MLP())
    job.steps(engine, range(3))


# in half precision the weights are drawn in it: others than those of plain PyTorch
_HERE: Any = {"stage": "3", "precision": ("fp32",)}


def _trained(job: Job, make: Callable[[], Any], train: Callable[[Any, int], None]) -> None:
    linear = job.torch.nn.functional.linear
    try:
        if job.plain:
            model = make()
        else:
            config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
            with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
                model = make()
        engine = job.engine(model)
        for step in range(3):
            train(engine, step)
    finally:
        job.torch.nn.functional.linear = linear  # zero.Init leaves its own


@scenario("a model made under zero.Init", ranks=("1",), **_HERE)  # without padding, which nothing initializes
def made_in_parts(job: Job) -> None:
    _trained(job, job.MLP, lambda engine, step: job.train(engine, step))


@scenario("a model made under zero.Init, trained on tokens", **_HERE)
def tokens_in_parts(job: Job) -> None:
    _trained(job, job.Transformer, lambda engine, step: job.train_on_tokens(engine, step))


@scenario("a model made under zero.Init, of which one block is frozen, and the bias of another", **_HERE)
def frozen_in_parts(job: Job) -> None:
    def make() -> Any:
        model = job.MLP()
        model.blocks[0].requires_grad_(False)
        model.blocks[1][0].bias.requires_grad_(False)  # type: ignore[index,unused-ignore]
        return model

    _trained(job, make, lambda engine, step: job.train(engine, step))


_MOVED: Any = {"stage": "3", "offload": ("none",), "optimizer": ("client's AdamW",)}
_PINNED = [{"stage": "3", "optimizer": "client's AdamW"}]


def _train(job: Job, model: Any, parameters: list[Any]) -> None:
    from dsfix.patches import _half as half

    def fused(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    engine = job.engine(model, parameters, optimizer=fused)
    for step in range(3):
        job.train(engine, step)
        if not job.plain:
            engine.offload_states()
            engine.reload_states()
        job.look(engine, f"after step {step}")


@scenario("ZeRO-3 with FusedAdam is moved to the host and back", pinned=_PINNED, **_MOVED)
def zero3_moved_and_back(job: Job) -> None:
    model = job.MLP()
    _train(job, model, list(model.parameters()))


@scenario("ZeRO-3 with FusedAdam and two groups is moved to the host and back", pinned=_PINNED, **_MOVED)
def zero3_moved_and_back_with_groups(job: Job) -> None:
    model = job.MLP()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    _train(job, model, groups)


_FITS: Any = {"stage": "3", "offload": ("none",)}


def _model(job: Job) -> Any:
    """The number of elements of each parameter is a multiple of four ranks."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    return job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 4))


def _trained_shards(job: Job, size: int, **options: Any) -> None:
    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # scaling the gradients is compiled on first use
    with _coalesced(job):
        engine = job.engine(_model(job), zero_optimization={"mics_shard_size": size, **options})
        if job.world_size > size and hasattr(getattr(engine, "optimizer", None), "_get_param_partition_rank"):
            return  # 0.19.6 hangs: by that rank, only the first of several groups has gradients to reduce
        job.steps(engine, range(3))


@contextmanager
def _coalesced(job: Job) -> Iterator[None]:
    """gloo has no coalescing manager of its own."""
    collectives: Any = job.torch.distributed.distributed_c10d
    manager = collectives._coalescing_manager

    def without_device(group: Any, device: Any = None, async_ops: bool = False) -> Any:
        return manager(group, async_ops=async_ops)

    with mock.patch.object(collectives, "_coalescing_manager", without_device):
        yield


@scenario("MiCS in groups of two ranks")
@settings(
    pinned=[{"stage": "3", "partitioning": "all"}, {"stage": "3", "ranks": "4", "partitioning": "all"}],
    ranks=("2", "4"),
    **_FITS,
)
def mics(job: Job) -> None:
    _trained_shards(job, 2)


@scenario("MiCS in a group of two ranks resumes from a checkpoint")
@settings(pinned=[{"stage": "3", "partitioning": "all"}], ranks=("2",), **_FITS)
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
    _trained_shards(job, 1)


@scenario("MiCS in one group of four ranks, which are two nodes")
@settings(pinned=[{"stage": "3", "ranks": "4", "partitioning": "all"}], ranks=("4",), **_FITS)
def mics_of_nodes(job: Job) -> None:
    with mock.patch.dict(os.environ, NDEV_PER_NODE="2"):
        _trained_shards(job, 4, mics_hierarchical_params_gather=True)
