"""Objects that outlive an engine, many parameters, and calls that change nothing."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import schedules

_ALONE: Any = {"stage": "0", "precision": ("fp32",), "ranks": ("1",), "optimizer": ("client's SGD",)}
_PINNED: Any = [{"stage": "0", "ranks": "1", "optimizer": "client's SGD"}]
_COSINE: Any = {"scheduler": {"type": "WarmupCosineLR", "params": schedules._COSINE}}
_WARMUP: Any = {
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": list(schedules._OWN), **schedules._LINEAR}}
}


def _optimizer(job: Job, model: Any) -> Any:
    """Two groups, which have their own rates."""
    options = {**space.SGD, "foreach": False}
    return job.torch.optim.SGD(schedules._groups(model.to(job.device), schedules._OWN), **options)


def _trained(job: Job, engine: Any, share: Callable[[int], float], steps: int = 5) -> None:
    """share: of the groups' own rates, in the step after that iteration."""
    for step in range(steps):
        if job.plain:
            for group, rate in zip(engine.optimizer.param_groups, schedules._OWN):
                group["lr"] = rate * share(step - 1)
        job.train(engine, step)


def _made_twice(job: Job, config: Any, share: Callable[[int], float], between: Callable[[Any], Any]) -> None:
    """between: gets the first engine, and may return what the second is made with, besides the optimizer."""
    model = job.MLP()
    optimizer = _optimizer(job, model)
    first = job.engine(model, [], lambda _: optimizer, **config)
    between(first)
    _trained(job, job.engine(model, [], lambda _: optimizer, **config), share)


@scenario("an engine with a warm-up and a cosine is made twice with one optimizer", pinned=_PINNED, **_ALONE)
def cosine_made_twice(job: Job) -> None:
    _made_twice(job, _COSINE, schedules._cosine, lambda engine: engine.destroy())


@scenario("an engine with a warm-up and a cosine is made again while the first one exists", pinned=_PINNED, **_ALONE)
def cosine_made_beside(job: Job) -> None:
    _made_twice(job, _COSINE, schedules._cosine, lambda engine: None)


@scenario("an engine with a warm-up is made twice with one optimizer", pinned=_PINNED, **_ALONE)
def warmup_made_twice(job: Job) -> None:
    _made_twice(job, _WARMUP, schedules._linear, lambda engine: engine.destroy())


@contextmanager
def _out_of_memory(optimizer: Any) -> Iterator[None]:
    """The next step fails, as where memory ends while the moments are created."""

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("out of memory")

    optimizer.step = fail
    try:
        yield
    finally:
        del optimizer.step


def _fails_once(job: Job, engine: Any) -> None:
    basic = getattr(engine, "basic_optimizer", engine.optimizer)
    with _out_of_memory(basic):
        for batch in job.batches(50):
            engine.backward(job.loss(engine, batch))
            try:
                engine.step()
            except MemoryError as error:
                job.survived("the first step", error)
    engine.module.zero_grad()


@scenario("the first step of an engine with a warm-up and a cosine fails, and another one is made with its optimizer")
@settings(pinned=_PINNED, **_ALONE)
def cosine_after_a_failure(job: Job) -> None:
    _made_twice(job, _COSINE, schedules._cosine, lambda engine: _fails_once(job, engine))


@scenario("a step fails, the engine is destroyed, and another one is made for the same module")
@settings(precision=("fp32",), optimizer=("SGD",), pinned=[{"stage": "3"}, {"stage": "1"}])
def made_after_a_failure(job: Job) -> None:
    engine = job.engine(job.MLP())
    _fails_once(job, engine)
    engine.destroy()
    engine = job.engine(engine.module)
    job.steps(engine, range(3))


@scenario("an engine cannot be made, and then is with the same model and optimizer", pinned=_PINNED, **_ALONE)
def made_after_a_refusal(job: Job) -> None:
    model = job.MLP()
    optimizer = _optimizer(job, model)
    if not job.plain:
        try:
            job.engine(model, [], lambda _: optimizer, train_batch_size=7, gradient_accumulation_steps=5)
        except AssertionError:
            job.bits("refused", 1)
    _trained(job, job.engine(model, [], lambda _: optimizer, **_WARMUP), schedules._linear)


def _plainly(job: Job, model: Any, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    loss: Any = job.loss(model, job.batch(step))
    loss.backward()
    optimizer.step()
    job.note(f"plain step {step}", job.torch.cat([each.detach().flatten() for each in model.parameters()]))


@scenario("an engine is destroyed after a few steps, and its model and optimizer are trained without one")
@settings(pinned=_PINNED, **{**_ALONE, "accumulation": ("1",), "clipping": ("off",)})
def trained_on_without_an_engine(job: Job) -> None:
    model = job.MLP()
    optimizer = _optimizer(job, model)
    engine = job.engine(model, [], lambda _: optimizer)
    job.steps(engine, range(2))
    engine.destroy()
    del engine
    gc.collect()
    for step in range(2, 5):
        _plainly(job, model, optimizer, step)


@scenario(
    "an engine is thrown away before its first step, and its optimizer is used without one, under PyTorch's schedule"
)
@settings(pinned=_PINNED, **{**_ALONE, "accumulation": ("1",), "clipping": ("off",)})
def optimizer_taken_back(job: Job) -> None:
    model = job.MLP()
    optimizer = _optimizer(job, model)
    _used_without(job, model, optimizer, {})


def _used_without(job: Job, model: Any, optimizer: Any, config: Any) -> None:
    job.engine(model, [], lambda _: optimizer, **config).destroy()
    schedule = job.torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(3):
        _plainly(job, model, optimizer, step)
        schedule.step()


# since 0.15.3 DeepSpeed's own schedules leave their first rates behind
_OLD: Any = {"pinned": _PINNED, "release": "0.14.2", **_ALONE, "accumulation": ("1",), "clipping": ("off",)}


@scenario("an optimizer is taken back from an engine with a warm-up, and used without one", **_OLD)
def optimizer_taken_back_from_warmup(job: Job) -> None:
    model = job.MLP()
    _used_without(job, model, _optimizer(job, model), {} if job.plain else _WARMUP)


@scenario("the engine has a warm-up and a cosine, and the script a schedule of PyTorch's, which it steps later", **_OLD)
def schedule_of_pytorch_beside_cosine(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, [], lambda given: _optimizer(job, model), **_COSINE)
    schedule = job.torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda step: step / 4)
    for step in range(4):
        job.train(engine, step)
        schedule.step()


@scenario("an engine is gone while a graph of it is alive, which then gets its gradients")
@settings(pinned=_PINNED, **{**_ALONE, "accumulation": ("1",)})
def graph_of_a_gone_engine(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    model = engine.module
    loss: Any = job.loss(engine, job.batch(1))
    engine.destroy()
    del engine
    gc.collect()
    loss.backward()
    for name, parameter in model.named_parameters():
        job.note(f"gradient of {name}", parameter.grad)


@scenario("after an engine's end the model has the hooks that it has without dsfix")
@settings(pinned=[{"stage": "3"}, {"stage": "1"}], reference=False, optimizer=("SGD",))
def hooks_left(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
    model = engine.module
    engine.destroy()
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
    for name, module in model.named_modules():
        job.bits(f"hooks of {name}", repr([len(getattr(module, kind)) for kind in kinds]))
    for name, parameter in model.named_parameters():
        job.bits(f"hooks of {name}", len(parameter._backward_hooks or ()))


@scenario("a scheduler of PyTorch's goes on with the next engine, which has the same optimizer and an empty group")
@settings(pinned=_PINNED, **_ALONE)
def scheduler_goes_on(job: Job) -> None:
    model = job.MLP()
    options = {**space.SGD, "foreach": False}
    parameters = list(model.to(job.device).parameters())
    optimizer = job.torch.optim.SGD([{"params": parameters}, {"params": []}], **options)
    schedule = job.torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for part in range(2):
        engine = job.engine(model, [], lambda _: optimizer)
        for step in range(2 * part, 2 * part + 2):
            job.train(engine, step)
            schedule.step(1.0)
        engine.destroy()


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


def _train_many(job: Job, model: Any, groups: Any = None, used: Any = None) -> None:
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
    _train_many(job, job.model(forward, many=many))


@scenario("150 modules have a parameter each", pinned=[{"stage": "3", "offload": "optimizer"}], **_FEW)
def in_many_modules(job: Job) -> None:
    _train_many(job, _rows(job, _MODULES))


@scenario("8 of 400 modules are ever used", pinned=[{"stage": "2", "offload": "optimizer"}], **_FEW)
def mostly_unused(job: Job) -> None:
    _train_many(job, _rows(job, _MANY), used=lambda _: slice(_USED))


@scenario("30 parameters have a group each, every third is frozen", pinned=[{"stage": "3"}], **_FEW)
def in_many_groups(job: Job) -> None:
    model = _rows(job, _GROUPS)
    for row in model.rows[::3]:
        row.requires_grad_(False)
    groups = [{"params": [row.weight], "lr": 0.01 * (1 + number % 7)} for number, row in enumerate(model.rows)]
    _train_many(job, model, groups)


_SEVERAL = ("2", "3")

# without plain PyTorch as the reference: nothing that patches make right, as several micro-batches or weight decay
_WITHOUT: Any = {"reference": False, "accumulation": ("1",), "precision": ("fp32", "bf16", "fp16")}


def _train(job: Job, call: Callable[[Any, int], None], **config: Any) -> None:
    """Six steps with the call after each. In half precision they are small: what the fp32 weights lose is seen."""
    engine = job.engine(job.MLP(), **config)
    _steps(job, engine, call)


def _train_without_reference(job: Job, call: Callable[[Any, int], None]) -> None:
    """No parameter has to be padded, by numbers that are not initialized."""
    model = job.MLP()
    model.head = job.torch.nn.Linear(16, 1, bias=False)
    sgd = job.torch.optim.SGD
    _steps(job, job.engine(model, optimizer=lambda given: sgd(given, lr=0.05, momentum=0.9)), call)


def _steps(job: Job, engine: Any, call: Callable[[Any, int], None]) -> None:
    if job.half:
        for group in engine.optimizer.param_groups:
            group["lr"] *= 0.01
    for step in range(6):
        job.train(engine, step)
        if not job.plain:
            call(engine, step)


def _load(job: Job, engine: Any, tag: str, **options: bool) -> None:
    engine.load_checkpoint(str(job.tmp / "checkpoint"), tag=tag, **options)


@scenario("after each step a checkpoint is written, twice, and loaded")
@settings(pinned=[{"precision": "bf16"}, {"stage": "2", "offload": "optimizer"}], stage="012")
def saved_and_loaded(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        job.save(engine, "same")
        job.save(engine, "same")
        _load(job, engine, "same")

    _train(job, call)


# of which DeepSpeed says that a new engine is needed
@scenario("ZeRO-3: after each step a checkpoint is written and loaded", stage="3", **_WITHOUT)
def zero3_saved_and_loaded(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        job.save(engine, f"step{step}")
        _load(job, engine, f"step{step}")

    _train_without_reference(job, call)


def _verified(job: Job, train: Callable[..., None] = _train, **options: bool) -> None:
    def call(engine: Any, step: int) -> None:
        job.save(engine, "same")
        _load(job, engine, "same", **options)

    train(job, call)


@scenario("after each step a checkpoint is written and verified by loading it without the optimizer's states")
@settings(pinned=[{"precision": "fp16", "ranks": "1"}, {"precision": "bf16", "optimizer": "client's AdamW"}], stage="0")
def verified(job: Job) -> None:
    _verified(job, load_optimizer_states=False, load_lr_scheduler_states=False)


# with ZeRO, DeepSpeed itself takes the fp32 weights from the rounded ones since 0.13.0
@scenario("with ZeRO a checkpoint is verified by loading it without the optimizer's states")
@settings(pinned=[{"stage": "1", "precision": "bf16"}, {"stage": "3", "precision": "fp16"}], stage="123", **_WITHOUT)
def zero_verified(job: Job) -> None:
    _verified(job, _train_without_reference, load_optimizer_states=False, load_lr_scheduler_states=False)


@scenario("ZeRO of 0.12: a checkpoint is verified by loading it without the optimizer's states")
@settings(pinned=[{"stage": "2", "precision": "fp16", "ranks": "1"}], release="0.12.2", stage="12")
def zero_of_0_12_verified(job: Job) -> None:
    _verified(job, load_optimizer_states=False, load_lr_scheduler_states=False)


@scenario("after each step a checkpoint is verified by loading it without the schedule's states")
@settings(pinned=[{}], stage="012")
def verified_without_schedule(job: Job) -> None:
    _verified(job, load_lr_scheduler_states=False)


@scenario("after each step the module alone is loaded from a checkpoint, in fp32", precision=("fp32",), stage="0")
def module_verified(job: Job) -> None:
    _verified(job, load_module_only=True)


# which takes the fp32 weights from the rounded ones; half precision without ZeRO is what patches make right
@scenario("with ZeRO the module alone is loaded from a checkpoint after each step")
@settings(pinned=[{"stage": "3"}, {"stage": "1", "precision": "fp16"}], stage="123", **_WITHOUT)
def zero_module_verified(job: Job) -> None:
    _verified(job, _train_without_reference, load_module_only=True)


@scenario("after each step another engine loads the checkpoint, and is thrown away", pinned=[{"precision": "bf16"}])
def verified_by_another(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        if step % 2:
            job.save(engine, f"step{step}")
            other = job.engine(job.MLP(seed=1))
            job.load(other, f"step{step}", optimizer=step == 1)
            other.destroy()

    _train(job, call)


@scenario("a checkpoint that does not exist is loaded, and the job goes on", pinned=[{"stage": "3"}])
def missing_loaded(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        for directory, tag in ((job.tmp / "none", None), (job.tmp / "none", "missing")):
            try:
                engine.load_checkpoint(str(directory), tag=tag)
            except (OSError, AssertionError, IndexError, ValueError) as error:
                job.survived(f"step {step}", error)

    _train(job, call)


def _read(job: Job, engine: Any, label: str) -> None:
    utils = importlib.import_module("deepspeed.utils")
    job.bits(f"{label}: rates", str([float(rate) for rate in engine.get_lr()]))
    job.bits(f"{label}: norm", str(engine.get_global_grad_norm()))
    job.bits(f"{label}: stepped", engine.was_step_applied())
    job.bits(f"{label}: steps", f"{engine.global_steps} {engine.global_samples} {engine.micro_steps}")
    for name, parameter in engine.module.named_parameters():
        if job.stage:
            weight = utils.safe_get_full_fp32_param(parameter)
            job.bits(f"{label}: {name}", None if weight is None else weight.float())
    engine.train(engine.training)
    engine.module.to(job.device)


@scenario("after each step rates, norm, counts and weights are read, and the module moved to where it is")
def only_read(job: Job) -> None:
    _train(job, lambda engine, step: _read(job, engine, f"step {step}"))


@scenario("after each step all gradients are discarded, in each way", pinned=[{"stage": "1"}, {"stage": "3"}])
def zeroed_after_a_step(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        engine.zero_grad()
        engine.module.zero_grad()
        engine.optimizer.zero_grad()
        for parameter in engine.module.parameters():
            parameter.grad = None

    _train(job, call)


def _loaded_from_itself(job: Job, engine: Any) -> None:
    module = {name: each.clone() for name, each in engine.module_state_dict().items()}
    engine.load_module_state_dict({"module": module} if _takes_checkpoint(engine) else module)
    if job.stage == 0:
        engine.optimizer.load_state_dict(_copied(job, engine.optimizer.state_dict()))
    elif job.stage < 3:
        engine.optimizer.state_dict()


def _takes_checkpoint(engine: Any) -> bool:
    return "checkpoint" in engine.load_module_state_dict.__code__.co_varnames


def _copied(job: Job, state: Any) -> Any:
    if isinstance(state, job.torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(job, each) for key, each in state.items()}
    return type(state)(_copied(job, each) for each in state) if isinstance(state, (list, tuple)) else state


@scenario("after each step the module, and without ZeRO the optimizer, are loaded from their own state_dict()")
@settings(pinned=[{"precision": "fp16"}, {"precision": "bf16"}, {"stage": "2", "precision": "bf16"}], stage="012")
def loaded_from_itself(job: Job) -> None:
    _train(job, lambda engine, step: _loaded_from_itself(job, engine))


@scenario("after each step the weights are written for publishing")
@settings(pinned=[{"stage": "3", "precision": "bf16"}, {"stage": "1"}])
def published(job: Job) -> None:
    gathered = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}} if job.stage == 3 else {}

    def call(engine: Any, step: int) -> None:
        engine.save_16bit_model(str(job.tmp / "published"))
        if job.stage == 3:
            engine._zero3_consolidated_16bit_state_dict()
        if job.rank == 0:
            written = job.torch.load(job.tmp / "published" / "pytorch_model.bin")
            job.bits(f"step {step}: written", job.torch.cat([written[name].flatten() for name in sorted(written)]))

    _train(job, call, **gathered)


# DeepSpeed has this for ZeRO-3, and some releases for ZeRO-1 and ZeRO-2
@scenario("after each step states are moved to the host and back, of all kinds and of each")
@settings(
    pinned=[{"stage": "3", "precision": "bf16"}, {"stage": "3", "partitioning": "all"}], stage="123", offload=("none",)
)
def moved_and_back_by_kinds(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        if not hasattr(engine, "offload_states"):
            return
        kinds = list(importlib.import_module("deepspeed.runtime.zero.offload_config").OffloadStateTypeEnum)
        try:
            engine.offload_states(**({"include": [kinds[step - 1]]} if 0 < step <= len(kinds) else {}))
            engine.reload_states()
        except (AssertionError, RuntimeError, ValueError, AttributeError) as error:
            job.survived(f"step {step}", error)

    _train(job, call)


@scenario("within a round everything is read, written and evaluated")
@settings(
    accumulation=_SEVERAL, pinned=[{"stage": stage, "accumulation": "2", "precision": "bf16"} for stage in "0123"]
)
def called_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            engine.step()
            if not job.plain and micro == 0:
                _read(job, engine, f"step {step}")
                job.save(engine, f"step{step}")
                engine.eval()
                with job.torch.no_grad():
                    job.loss(engine, job.batch(500 + step))
                engine.train()
                if job.stage < 3:
                    engine.module_state_dict()
        job.look(engine, f"step {step}")
