"""ZeRO-3, hpZ, MiCS, Twin-Flow and zero.Init, in scripts that work around a bug: models made and checkpoints loaded."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import second_copies, shards, twin_flow, zero_inits_nested
from matrix.bystanders.scenarios.around_zero3 import _frozen, _one, _train

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HPZ: Any = {"zero_optimization": second_copies._hpz(2)}


@scenario("ZeRO++ hpZ, and the device is waited for before the backward pass",
    works_around=("hpz_second_copy_read_early",), release="0.13.4", **_one(ranks="2"))  # fmt: skip
def hpz_synchronized(job: Job) -> None:
    engine = job.engine(second_copies._model(job), **_HPZ)

    def backward(value: Any) -> None:
        job.torch.cuda.synchronize()
        engine.backward(value)

    _train(job, engine, backward=backward)


@scenario("ZeRO++ hpZ, half frozen: a checkpoint is loaded after an evaluation, and the script drops the second copies",
    works_around=("hpz_stale_frozen", "hpz_stale_secondary"), **_one(ranks="2"))  # fmt: skip
def hpz_copies_dropped(job: Job) -> None:
    def make(seed: int) -> Any:
        model = second_copies._model(job, seed)
        _frozen(model.below)
        return job.engine(model, list(model.head.parameters()), **_HPZ)

    engine = make(0)
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    engine = make(1)
    with job.torch.no_grad():
        job.note("evaluation", job.loss(engine, job.batch(100)))
    job.load(engine, "two")
    for parameter in engine.module.parameters():
        if not job.plain:
            parameter.ds_secondary_tensor = None
    with job.torch.no_grad():
        job.note("evaluation of what is loaded", job.loss(engine, job.batch(100)))
    for step in range(2, 4):
        job.train(engine, step)


@scenario("ZeRO++ hpZ, and the script forgets the first model's groups before the second zero.Init",
    works_around=("hpz_second_init",), **_one(ranks="2"))  # fmt: skip
def hpz_groups_forgotten(job: Job) -> None:
    model, other = second_copies._model(job), second_copies._model(job, seed=1)
    second_copies._made(job, model, 2)
    if not job.plain:
        importlib.import_module("deepspeed.utils.groups")._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # type: ignore[attr-defined]
    second_copies._made(job, other, 2)
    job.bits("second", ", ".join(str(tuple(getattr(each, "ds_shape", each.shape))) for each in other.parameters()))
    _train(job, job.engine(second_copies._model(job), **_HPZ))


@scenario("MiCS resumes from a checkpoint, and the script drops the shapes that it does not take",
    works_around=("mics_resume_param_shapes",), **_one(ranks="2"))  # fmt: skip
def mics_without_shapes(job: Job) -> None:
    optimizer = None
    if not job.plain:
        with contextlib.suppress(ImportError):  # since 0.19.7
            optimizer = importlib.import_module("deepspeed.runtime.zero.mics").MiCS_Optimizer
    load = getattr(optimizer, "load_state_dict", None)

    def without_shapes(self: Any, *args: Any, param_shapes: Any = None, **options: Any) -> Any:
        return load(self, *args, **options)  # type: ignore[misc]

    with mock.patch.object(optimizer, "load_state_dict", without_shapes) if load else contextlib.nullcontext():
        shards.mics_resumed(job)


_TWIN: Any = _one(offload="optimizer", optimizer="client's AdamW", partitioning="parameters persist")


@scenario("Twin-Flow, and the script sets the rate of both optimizers",
    works_around=("twin_flow_rate_never_changes",), **_TWIN)  # fmt: skip
def twin_flow_rates_by_hand(job: Job) -> None:
    engine = twin_flow._engine(job, job.MLP())
    for step in range(4):
        for optimizer in (engine.optimizer, getattr(engine.optimizer, "backup_optimizer", None)):
            for group in optimizer.param_groups if optimizer else ():
                group["lr"] = 0.01 / (step + 1)
        job.train(engine, step)


@scenario("Twin-Flow resumes from a checkpoint, and the script keeps the second optimizer's state itself",
    works_around=("twin_flow_moments_not_saved",), **_TWIN)  # fmt: skip
def twin_flow_moments_by_hand(job: Job) -> None:
    engine = twin_flow._engine(job, job.MLP())
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    kept = {place: _copied(state) for place, _, state in _second_states(engine)}
    engine = twin_flow._engine(job, job.MLP(seed=1))
    job.load(engine, "two")
    if not job.plain and hasattr(engine.optimizer, "backup_optimizer"):
        for place, state in kept.items():
            flat = engine.optimizer.fp32_partitioned_groups_flat[place]
            engine.optimizer.backup_optimizer.state[flat] = _copied(state)
    for step in range(2, 5):
        job.train(engine, step)


def _second_states(engine: Any) -> list[Any]:
    second = getattr(engine.optimizer, "backup_optimizer", None)
    flats = enumerate(getattr(engine.optimizer, "fp32_partitioned_groups_flat", ()))
    return [(place, flat, second.state[flat]) for place, flat in flats if second and flat in second.state]


def _copied(state: Any) -> dict[str, Any]:
    return {name: each.clone() if hasattr(each, "clone") else each for name, each in state.items()}


@scenario("the script writes an earlier checkpoint's tag into the file latest, and loads its weights",
    works_around=("zero3_load_of_another_tag",), **_one())  # fmt: skip
def latest_rewritten(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
        job.save(engine, f"step{step}")
    engine = job.engine(job.MLP(seed=1))
    if not job.plain:
        (job.tmp / "checkpoint" / "latest").write_text("step0")
    job.load(engine, "step0", optimizer=False)
    for step in range(2, 4):
        job.train(engine, step)


@scenario("a frozen linear layer with a trained bias, made under zero.Init with torch's own linear function",
    works_around=("zero3_bias_only_linear",), release="0.17.2", **_one())  # fmt: skip
def biases_alone(job: Job) -> None:
    def make() -> Any:
        model = job.MLP()
        model.blocks[1][0].weight.requires_grad_(False)  # type: ignore[index,unused-ignore]
        return model

    ordinary = {"memory_efficient_linear": False}
    if job.plain:
        model = make()
    else:
        config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
        config["zero_optimization"] = {**config["zero_optimization"], **ordinary}
        with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
            model = make()
    trained = [each for each in model.parameters() if each.requires_grad]
    _train(job, job.engine(model, trained, zero_optimization=ordinary))


@scenario("a class with a mixin calls its __init__ in one of its own, under zero.Init and afterwards",
    works_around=("zero_init_loses_init",), release="0.17.2", **_one())  # fmt: skip
def mixin_with_own_init(job: Job) -> None:
    class Scaled:
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

    class Model(Scaled, job.MLP):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.scale

    with zero_inits_nested._zero_init(job):
        if not job.plain:
            job.bits("scale", Model().scale)
    _train(job, job.engine(Model()))


@scenario("classes have an __init__ and an _apply of their own, for models made after zero.Init",
    works_around=("zero_init_stays_on", "zero_init_skip_init_stays_on"), release="0.14.2", **_one())  # fmt: skip
def own_init_and_apply(job: Job) -> None:
    nn = job.torch.nn

    class Layer(nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)

        def _apply(self, *args: Any, **options: Any) -> Any:
            return super()._apply(*args, **options)

    if not job.plain:
        with zero_inits_nested._zero_init(job):
            nn.Linear(4, 4)
            nn.utils.skip_init(nn.Linear, 4, 4)
    job.torch.manual_seed(0)
    model = nn.Sequential(Layer(16, 16), nn.Tanh(), Layer(16, 1)).to(job.torch.float64).to(job.torch.float32)
    for name, each in model.named_parameters():
        job.bits(name, str(tuple(each.shape)))
    _train(job, job.engine(model))
