"""Several engines in one process, monitors and profilers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings

_FITS: Any = {"stage": "3", "offload": ("none",), "ranks": ("2", "4")}


def _hpz(size: int) -> dict[str, Any]:
    return {"zero_hpz_partition_size": size}


def _model(job: Job, seed: int = 0) -> Any:
    """The number of elements of each parameter is a multiple of four ranks."""
    nn = job.torch.nn
    job.torch.manual_seed(seed)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    return job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 4))


@scenario("ZeRO++ hpZ, in nodes of two ranks")
@settings(
    pinned=[{"stage": "3", "partitioning": "all"}, {"stage": "3", "ranks": "4", "partitioning": "all"}],
    works_around=("hpz_second_copy_partly_written",),
    **_FITS,
)
def hpz(job: Job) -> None:
    engine = job.engine(_model(job), zero_optimization=_hpz(2))
    job.steps(engine, range(3))


@scenario("ZeRO++ hpZ, with a half that is frozen", **_FITS)
def hpz_frozen(job: Job) -> None:
    model = _model(job)
    for parameter in model.below.parameters():
        parameter.requires_grad_(False)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad], zero_optimization=_hpz(2))
    job.steps(engine, range(3))


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
    job.steps(engine, range(3))


@scenario("ZeRO++ hpZ, and a second zero.Init with nodes of another size")
@settings(reference=False, pinned=[{"stage": "3", "ranks": "4"}], **{**_FITS, "ranks": ("4",)})
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


@scenario("two engines are trained alternately, step by step")
def two_engines(job: Job) -> None:
    engines = [job.engine(job.MLP(seed=seed)) for seed in range(2)]
    for step in range(6):
        job.train(engines[step % 2], step)


@scenario("two engines are trained alternately, micro-batch by micro-batch", accumulation=("2", "3"))
def two_engines_within_a_round(job: Job) -> None:
    engines = [job.engine(job.MLP(seed=seed)) for seed in range(2)]
    for step in range(3):
        for batch in job.batches(step):
            for engine in engines:
                engine.backward(job.loss(engine, batch))
                engine.step()
        for number, engine in enumerate(engines):
            job.look(engine, f"step {step}, engine {number}")


@scenario("a GAN with two engines; the discriminator is frozen while the generator is trained through it")
def gan(job: Job) -> None:
    generator, discriminator = job.engine(job.MLP()), job.engine(job.MLP(seed=1))

    def frozen(yes: bool) -> None:
        for parameter in discriminator.module.parameters():
            parameter.requires_grad_(not yes)

    def real(batch: Any) -> Any:
        with job.torch.no_grad():
            made = batch[0] + generator(batch[0])
        return job.loss(discriminator, (made, batch[1]))

    def fooled(batch: Any) -> Any:
        return job.loss(discriminator.module, (batch[0] + generator(batch[0]), batch[1]))

    for step in range(0, 6, 2):
        frozen(False)
        job.train(discriminator, step, real)
        frozen(True)
        job.train(generator, step + 1, fooled)


@scenario("a frozen reference model and the trained model, each with an engine", ranks=("1", "2"))
def teacher(job: Job) -> None:
    taught = job.engine(job.MLP())
    other = job.engine(job.MLP(seed=1))
    other.eval()

    def loss(batch: Any) -> Any:
        with job.torch.no_grad():
            target = other(batch[0]).float()
        return job.loss(taught, (batch[0], target))

    job.steps(taught, range(3), loss)


def _destroyed(job: Job, then: Callable[[Any], Any]) -> None:
    """then: the first engine -> the next one's model."""
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    engine.destroy()
    engine = job.engine(then(engine))
    job.steps(engine, range(2, 5))


@scenario("an engine is destroyed, and another one created for a new model", works_around=("config_dict_reused",))
def destroyed(job: Job) -> None:
    _destroyed(job, lambda _: job.MLP(seed=1))


@scenario("an engine is destroyed, and another one created for the same module")
def destroyed_and_made_again(job: Job) -> None:
    _destroyed(job, lambda engine: engine.module)


class _Wandb(ModuleType):
    """wandb before 0.20, as far as DeepSpeed's monitor uses it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.logged: list[tuple[Any, ...]] = []

    def init(self, **_: Any) -> None:
        pass

    def log(
        self, data: dict[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        self.logged += [(label, float(value), step, commit, sync) for label, value in data.items()]


@scenario("the loss goes to wandb, of a release before 0.20", works_around=("wandb_log_sync",), stage="03")
def logged_to_wandb(job: Job) -> None:
    wandb = _Wandb()
    sys.modules["wandb"] = wandb
    try:
        engine = job.engine(job.MLP(), wandb={"enabled": True, "project": "bystander"}, steps_per_print=1)
        job.steps(engine, range(3))
    finally:
        del sys.modules["wandb"]
    # from 0.18.3 on the loss itself is logged only with `monitor_train_loss`
    job.bits("logged", repr([each for each in wandb.logged if each[0] != "Train/Samples/train_loss"]))


@scenario("a script logs to wandb, of a release before 0.20, with and without sync", stage="03", ranks=("1", "2"))
def logged_by_hand(job: Job) -> None:
    wandb = _Wandb()
    sys.modules["wandb"] = wandb
    try:
        engine = job.engine(job.MLP(), wandb={"enabled": True, "project": "bystander"}, steps_per_print=1)
        for step in range(2):
            job.train(engine, step)
            if not job.plain:
                monitor = engine.monitor.wandb_monitor
                for options in ({}, {"commit": True}, {"sync": True}, {"sync": False, "commit": False}):
                    try:
                        monitor.log({"mine": step}, step=step, **options)
                    except TypeError as error:  # without `sync` since 0.17.2
                        job.survived(f"step {step}: {options}", error)
    finally:
        del sys.modules["wandb"]
    job.bits("logged", repr([each for each in wandb.logged if each[0] == "mine"]))


_COUNTED = 1


# the counts of a step's second micro-batch are wrong through 0.19.5
@scenario("the flops profiler counts the second step")
@settings(
    pinned=[{"stage": "0"}, {"stage": "3", "partitioning": "all"}],
    stage="013",
    precision=("fp32", "bf16"),
    accumulation=("1",),
)
def profiled(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    parts = {name: torch.nn.Linear(16, size) for name, size in (("below", 16), ("within", 16), ("head", 1))}

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x).tanh()[None]
        x = x + torch.nn.functional.scaled_dot_product_attention(x, x, x)
        x = torch.bmm(x, x.transpose(1, 2)) @ self.within(x)
        return self.head(x.tanh())[0]

    file = str(job.tmp / "profile")
    options = {"enabled": True, "profile_step": _COUNTED, "output_file": file}
    engine = job.engine(job.model(forward, **parts), flops_profiler=options)

    def loss(batch: Any) -> Any:
        value = job.loss(engine, batch)
        if step == _COUNTED and job.rank == 0 and not job.plain:
            job.bits("flops", int(engine.flops_profiler.get_total_flops()))
        return value

    for step in range(4):
        job.train(engine, step, loss)
