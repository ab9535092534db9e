"""Optimizers and their parameter groups."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import zero3

_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "NAdam": {"lr": 0.01, "weight_decay": 0.1},
    "ASGD": {"lr": 0.05, "weight_decay": 0.1, "t0": 1.0},
    "Rprop": {"lr": 0.001},
    "Adamax": {"lr": 0.01, "weight_decay": 0.1},
    "RAdam": {"lr": 0.01, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9, "centered": True},
    "Adadelta": {"lr": 1.0, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.01, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True},
}
_PINNED = [
    *({"stage": stage, "ranks": ranks} for stage in "123" for ranks in "12"),
    *({"stage": stage, "offload": "optimizer"} for stage in "123"),
]


@scenario("torch's optimizers with two groups, one after another")
@settings(
    works_around=("cpu_adam_amsgrad",), pinned=_PINNED, precision=("fp32",), optimizer=("SGD",), clipping=("off",)
)
def of_torch(job: Job) -> None:
    for name, options in _OPTIMIZERS.items():
        make = getattr(job.torch.optim, name)
        model = job.Branches()
        groups = [
            {"params": list(model.first.parameters())},
            {"params": list(model.second.parameters()), "lr": options["lr"] / 2},
        ]
        engine = job.engine(model, parameters=groups, optimizer=functools.partial(make, **options))
        for step in range(3):
            for batch in job.batches(step):
                engine.backward(job.loss(engine, batch, True))
                engine.step()
            job.look(engine, f"{name}, step {step}")
        engine.destroy()


_CLIENT: dict[str, Any] = {"optimizer": ("client's SGD",)}  # a name only: the scenario passes its own


def _two_groups(model: Any, **first: Any) -> list[dict[str, Any]]:
    """The usual split: one-dimensional parameters do not decay; `first` are options of the weights' group."""
    weights = [each for each in model.parameters() if each.ndim > 1]
    return [
        {"params": weights, **first},
        {"params": [each for each in model.parameters() if each.ndim == 1], "weight_decay": 0.0},
    ]


@scenario("two groups, one without weight decay")
def two_groups(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, _two_groups(model))
    job.steps(engine, range(3))


@scenario("three groups with different rates: two of one parameter each, and the rest")
def three_groups(job: Job) -> None:
    model = job.MLP()
    head = [{"params": [model.head.weight], "lr": 0.02}, {"params": [model.head.bias], "lr": 0.001}]
    engine = job.engine(model, [*head, {"params": list(model.blocks.parameters())}])
    job.steps(engine, range(3))


@scenario("the script changes the rate between steps")
def rate_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        for group in engine.optimizer.param_groups:
            group["lr"] = 0.02 / (step + 1)
        job.train(engine, step)


@scenario("the script changes rate and decay of one of two groups between steps, with a rate of 0 in some")
def decay_by_hand(job: Job) -> None:
    model = job.MLP()
    engine = job.engine(model, _two_groups(model, lr=0.02))
    for step in range(4):
        group = engine.optimizer.param_groups[0]
        group["lr"], group["weight_decay"] = (0.02, 0.0, 0.01, 0.0)[step], (0.0, 0.1, 0.5, 0.1)[step]
        job.train(engine, step)


@scenario("a group is unfrozen and added to the optimizer during training", stage="0", precision=("fp32",))
def group_added(job: Job) -> None:
    model = job.MLP()
    model.head.requires_grad_(False)
    engine = job.engine(model, list(model.blocks.parameters()))
    for step in range(4):
        if step == 2:
            engine.module.head.requires_grad_(True)
            engine.optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.02})
        job.train(engine, step)


@scenario("a group is added to the client optimizer before the engine is created", **_CLIENT)
def group_added_before(job: Job) -> None:
    model = job.MLP()

    def make(given: list[Any]) -> Any:
        optimizer = job.torch.optim.SGD(given, lr=0.05, momentum=0.9)
        optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.02})
        return optimizer

    engine = job.engine(model, list(model.blocks.parameters()), optimizer=make)
    job.steps(engine, range(3))


@scenario("a torch schedule on the client optimizer, stepped by hand", works_around=("one_cycle_stairs",), **_CLIENT)
def schedule_by_hand(job: Job) -> None:
    made = []

    def make(given: list[Any]) -> Any:
        made.append(job.torch.optim.SGD(given, lr=0.05, momentum=0.9))
        return made[0]

    engine = job.engine(job.MLP(), optimizer=make)
    schedule = job.torch.optim.lr_scheduler.ExponentialLR(made[0], gamma=0.5)
    for step in range(4):
        job.train(engine, step)
        schedule.step()
        job.note(f"step {step}: rate", schedule.get_last_lr()[0])


@scenario("OneCycleLR on the client's Adam, for rate and momentum, stepped by hand", **_CLIENT)
def one_cycle_by_hand(job: Job) -> None:
    made = []

    def make(given: list[Any]) -> Any:
        made.append(job.torch.optim.AdamW(given, lr=0.01, eps=1e-3))
        return made[0]

    model = job.MLP()
    engine = job.engine(model, _two_groups(model), optimizer=make)
    schedule = job.torch.optim.lr_scheduler.OneCycleLR(made[0], max_lr=0.05, total_steps=6)
    for step in range(4):
        job.train(engine, step)
        schedule.step()
        job.note(f"step {step}: rate", schedule.get_last_lr()[0])


def _client(job: Job, make: Callable[[list[Any]], Any]) -> None:
    model = job.MLP().to(job.device)  # before the optimizer is created: Adagrad allocates its sums at once
    engine = job.engine(model, _two_groups(model), optimizer=make)
    job.steps(engine, range(4))


@scenario("the client's SGD with Nesterov momentum", **_CLIENT)
def clients_nesterov(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.SGD(given, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01))


@scenario("the client's Adam with amsgrad", **_CLIENT)
def clients_adam(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.Adam(given, lr=0.01, eps=1e-3, amsgrad=True, weight_decay=0.01))


@scenario("the client's Adagrad", **_CLIENT)
def clients_adagrad(job: Job) -> None:
    _client(
        job,
        lambda given: job.torch.optim.Adagrad(
            given, lr=0.05, lr_decay=0.1, eps=1e-3, initial_accumulator_value=0.1, weight_decay=0.01
        ),
    )


@scenario("the client's RMSprop, centered", **_CLIENT)
def clients_rmsprop(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.RMSprop(given, lr=0.01, eps=1e-2, centered=True, momentum=0.5))


@scenario("the client's NAdam", **_CLIENT)
def clients_nadam(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.NAdam(given, lr=0.01, eps=1e-3, momentum_decay=0.1, weight_decay=0.01))


@scenario("the client's RAdam", **_CLIENT)
def clients_radam(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.RAdam(given, lr=0.02, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.01))


@scenario("the client's ASGD", **_CLIENT)
def clients_asgd(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.ASGD(given, lr=0.05, lambd=0.1, alpha=0.9, t0=1, weight_decay=0.01))


@scenario("the client's Rprop", precision=("fp32",), **_CLIENT)
def clients_rprop(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.Rprop([p for g in given for p in g["params"]], lr=0.01))


@scenario("the client's Adamax", **_CLIENT)
def clients_adamax(job: Job) -> None:
    _client(job, lambda given: job.torch.optim.Adamax(given, lr=0.01, eps=1e-2, weight_decay=0.01))


# one rank: no padding, which nothing initializes
_HERE: Any = {"stage": "3", "offload": ("optimizer",), "optimizer": ("client's AdamW",), "ranks": ("1",)}


def _engine(job: Job, model: Any, parameters: Any = None) -> Any:
    from dsfix.patches import _half as half

    def adam(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        half.provide_cpu_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam(given, **space.ADAM)

    part = {"sub_group_size": 100, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    return job.engine(model, parameters, adam, zero_optimization=part)


@scenario("Twin-Flow at a constant rate", **_HERE)
def twin_flow(job: Job) -> None:
    engine = _engine(job, job.MLP())
    job.steps(engine, range(4))


@scenario("Twin-Flow, two groups at constant rates of their own", **_HERE)
def twin_flow_groups(job: Job) -> None:
    model = job.MLP()
    groups = [
        {"params": list(model.blocks.parameters())},
        {"params": list(model.head.parameters()), "lr": 0.02, "weight_decay": 0.0},
    ]
    engine = _engine(job, model, groups)
    job.steps(engine, range(4))


_ONCE: Any = {**_HERE, "accumulation": ("1",), "clipping": ("off",), "partitioning": ("all",)}


@scenario("Twin-Flow, two groups at rates of their own, resumes from a checkpoint", **_ONCE)
def twin_flow_groups_resumed(job: Job) -> None:
    def make(seed: int) -> Any:
        model = job.MLP(seed=seed)
        groups = [
            {"params": list(model.blocks.parameters())},
            {"params": list(model.head.parameters()), "lr": 0.02, "weight_decay": 0.0},
        ]
        return _engine(job, model, groups)

    job.resume(make)


@scenario("MiCS on one rank, with the optimizer offloaded, resumes from a checkpoint", **_ONCE)
def mics_offloaded_resumed(job: Job) -> None:
    from dsfix.patches import _half as half

    def adam(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        half.provide_cpu_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam(given, **space.ADAM)

    def make(seed: int) -> Any:
        model = zero3._model(job)
        with job.torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + seed)
        options = {"mics_shard_size": 1, "sub_group_size": 100, "offload_optimizer": {"device": "cpu"}}
        return job.engine(model, None, adam, zero_optimization=options)

    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # scaling the gradients is compiled on first use
    with zero3._coalesced(job):
        job.resume(make)


def _trained_muons(job: Job) -> None:
    """Two matrices of equal size, one for each of two ranks; the scale brings each rank's gradients near 40000."""
    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    linear = functools.partial(torch.nn.Linear, 16, bias=False)
    torch.manual_seed(0)
    forward = lambda self, x: self.head(self.second(self.first(x).tanh()).tanh())  # noqa: E731
    model = job.model(forward, first=linear(16), second=linear(16), head=linear(1))
    inputs, targets = _batch()
    loss: Any = torch.nn.functional.mse_loss(model(inputs), targets)
    largest = max(float(each.abs().max()) for each in torch.autograd.grad(loss, list(model.parameters())))
    batch = inputs.to(job.device, job.dtype), targets.to(job.device)
    muon = {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.0, "torch_adam": True}}
    whole: dict[str, Any] = {**space.config(job.setting), "optimizer": muon}
    if job.setting["precision"] == "fp16":
        whole["fp16"] = {"enabled": True, "loss_scale": 40000 / largest}
    engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
    for step in range(3):
        for _ in range(job.accumulation):
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.bits(f"step {step}: skipped steps", int(engine.skipped_steps))
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


def _batch() -> Any:
    """One repeated row, so that intermediate values are smaller than the gradients; the same on all ranks."""
    from dsfix.lab.models import regression_batch

    inputs, targets = regression_batch(0, 0)
    return inputs[:1].repeat(32, 1), targets[:1].repeat(32, 1)


@scenario("Muon in fp16 with gradients whose sum over the ranks, but not their mean, overflows fp16")
@settings(
    reference=False,
    stage="12",
    offload=("none",),
    precision=("fp16", "bf16"),
    ranks=("2",),
    accumulation=("1", "2"),
    optimizer=("SGD",),
    pinned=[{"stage": "1", "precision": "fp16"}],
)
def muon_of_large_gradients(job: Job) -> None:
    _trained_muons(job)


_PARAMS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}


def _plain(job: Job) -> Any:
    from matrix.bystanders import muon

    class Muon(job.torch.optim.Optimizer):  # type: ignore[name-defined,misc]
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    state, gradient = self.state[parameter], parameter.grad
                    moved = state.get("momentum", job.torch.zeros_like(gradient)).lerp(gradient, 1 - group["momentum"])
                    state["momentum"] = moved
                    blend = gradient.lerp(moved, group["momentum"])
                    update = muon.orthogonalized(blend, job.torch.bfloat16).to(parameter.dtype)
                    with job.torch.no_grad():
                        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)

    return lambda given: Muon(given, dict(_PARAMS))


@scenario("Muon without ZeRO or with offload, in half precision")
@settings(
    pinned=[
        {"precision": "bf16"},
        {"precision": "fp16", "accumulation": "2", "clipping": "on"},
        {"stage": "2", "offload": "optimizer", "precision": "fp16"},
    ],
    stage="0",
    precision=("bf16", "fp16"),
    optimizer=("SGD",),
)
def muon_alone(job: Job) -> None:
    from dsfix.lab.models import regression_batch

    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    torch.manual_seed(0)
    model = job.model(lambda self, x: self.only(x), only=torch.nn.Linear(16, 16, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(job._held))
    if job.plain:
        engine = job.engine(model, optimizer=_plain(job))
    else:
        # torch_adam: later releases would compile an operator
        muon = {"type": "Muon", "params": {"torch_adam": True, **_PARAMS}}
        whole = {**space.config(job.setting), "optimizer": muon}
        initial = job._whole(model)
        engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
        job._initial[id(engine)] = initial

    def loss(batch: Any) -> Any:
        number = next(numbers)
        inputs, targets = (regression_batch(job.rank, each, size=32)[0].to(job.device) for each in (number, number + 1))
        return torch.nn.functional.mse_loss(engine(inputs.to(job.dtype)).float(), targets)

    numbers = iter(range(100))
    job.steps(engine, range(3), loss)


_FITS: Any = {"reference": False, "stage": "123", "optimizer": ("SGD",)}


def _trained(job: Job, params: dict[str, Any], resumed: bool = False) -> None:
    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use

    def start() -> Any:
        model = job.MLP()
        # torch_adam: later releases would compile an operator
        muon = {"type": "Muon", "params": {"torch_adam": True, **params}}
        whole = {**space.config(job.setting), "optimizer": muon}
        # with reduce_scatter, ZeRO-1 and ZeRO-2 have a bug through 0.19.2, and ZeRO-3 refuses Muon
        whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}
        return job._lab.initialize(model, whole, model_parameters=list(model.parameters()))

    engine = start()
    for step in range(3):
        if resumed and step == 2:
            job.save(engine, "two")
            engine = start()
            job.load(engine, "two")
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.bits(f"step {step}: skipped steps", int(engine.skipped_steps))
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario("Muon, and Adam for the biases")
@settings(
    works_around=("muon_offload_is_sgd", "muon_param_groups_before_0_19_2", "muon_reduce_scatter"),
    pinned=[{"stage": "1"}, {"stage": "2", "ranks": "4"}],
    offload=("none",),
    **_FITS,
)
def muon_and_adam(job: Job) -> None:
    _trained(job, {"muon_lr": 0.02, "adam_lr": 0.01, "momentum": 0.9, "weight_decay": 0.01})


@scenario("Muon and torch_autocast in fp16, the script multiplies the learning rate by the loss scale")
@settings(
    reference=False,
    works_around=("muon_autocast_divided_by_loss_scale", "autocast_fp16_clips_scaled_gradients"),
    stage="12",
    offload=("none",),
    precision=("fp32",),
    ranks=("1", "2"),
    clipping=("off",),
    optimizer=("SGD",),
    pinned=[{"stage": "1", "ranks": "2"}, {"stage": "2", "accumulation": "2"}],
    release="0.18.9",
)
def muon_in_autocast(job: Job) -> None:
    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    model = job.MLP()
    muon = {"muon_lr": 0.02 * 65536, "adam_lr": 0.01, "weight_decay": 0.0, "torch_adam": True}
    whole = {**space.config(job.setting), "optimizer": {"type": "Muon", "params": muon}}
    whole.update(torch_autocast={"enabled": True, "dtype": "float16"}, gradient_clipping=0.0)
    whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}
    engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch) * 0.01)
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario("Muon resumes from a checkpoint", pinned=[{"stage": "2"}], precision=("fp32",), **_FITS)
def muon_resumed(job: Job) -> None:
    _trained(job, {"lr": 0.02, "weight_decay": 0.0}, resumed=True)


@scenario("Muon in half precision resumes, and the script casts its momentum to the gradients' dtype")
@settings(
    works_around=("muon_momentum_restored_in_fp32",),
    pinned=[{"stage": "2", "precision": "bf16"}],
    offload=("none",),
    precision=("bf16", "fp16"),
    **{**_FITS, "stage": "12"},
)
def muon_momentum_cast(job: Job) -> None:
    torch = job.torch
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    muon = {"type": "Muon", "params": {"torch_adam": True, "lr": 0.02, "weight_decay": 0.0}}
    whole = {**space.config(job.setting), "optimizer": muon}
    whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}

    def start() -> Any:
        model = job.MLP()
        initial = job._whole(model)
        engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
        job._initial[id(engine)] = initial
        return engine

    engine = start()
    job.steps(engine, range(2))
    job.save(engine, "two")
    engine = start()
    job.load(engine, "two")
    for state in engine.optimizer.optimizer.state.values():
        if "momentum_buffer" in state:
            state["momentum_buffer"] = state["momentum_buffer"].to(job.dtype)
    job.steps(engine, range(2, 4))


_LAMB_PARAMS = {"lr": 1e-3, "weight_decay": 0.01}
_LAMB: Any = {"reference": False, "stage": "0", "precision": ("fp32",), "ranks": ("1",), "optimizer": ("SGD",)}


def _lamb_trained(job: Job, freeze_step: int, empty: bool, steps: int = 5) -> None:
    torch = job.torch
    sys.modules.setdefault("cupy", ModuleType("cupy"))  # nothing of it is used but its name
    model = job.MLP()
    if empty:
        model = job.model(lambda self, x: self.body(x) + self.nothing.sum(), body=model)  # type: ignore[assignment,unused-ignore]
        model.register_parameter("nothing", torch.nn.Parameter(torch.ones(0, 8)))
    whole = {
        **space.config(job.setting),
        "optimizer": {"type": "OneBitLamb", "params": {**_LAMB_PARAMS, "freeze_step": freeze_step}},
    }
    initial = job._whole(model)
    engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
    job._initial[id(engine)] = initial
    job.steps(engine, range(steps))


@scenario("1-bit LAMB", pinned=[{"ranks": "1"}], **_LAMB)
def onebit_lamb(job: Job) -> None:
    _lamb_trained(job, 3, empty=False)


@scenario("1-bit LAMB before its freeze_step, with a parameter without elements", pinned=[{"ranks": "1"}], **_LAMB)
def onebit_lamb_uncompressed(job: Job) -> None:
    _lamb_trained(job, 100, empty=True)


@scenario("1-bit LAMB with a parameter without elements", pinned=[{"ranks": "1"}], **_LAMB)
def onebit_lamb_with_nothing(job: Job) -> None:
    _lamb_trained(job, 3, empty=True)
