"""Optimizers and their rates, in scripts that work around one of DeepSpeed's bugs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _one(**levels: str) -> dict[str, Any]:
    """Stage 0 on one rank with these levels: one job."""
    setting = {**space.plain(), "stage": "0", "ranks": "1", **levels}
    return {"pinned": [setting], **{name: (level,) for name, level in setting.items()}}


@scenario("a group without parameters is left out of the optimizer, which has a schedule of PyTorch's",
    works_around=("empty_group_scheduler",), **_one(stage="2"))  # fmt: skip
def empty_group_left_out(job: Job) -> None:
    model = job.MLP()
    groups = [{"params": []}, {"params": list(model.parameters()), "lr": 0.05}]
    made: list[Any] = []

    def optimizer(given: Any) -> Any:
        made.append(job.torch.optim.SGD([group for group in given if group["params"]], lr=0.1))
        made.append(job.torch.optim.lr_scheduler.LambdaLR(made[0], lambda step: 0.5**step))
        return made[0]

    engine = job.engine(model, groups, optimizer=optimizer)
    for step in range(4):
        job.train(engine, step)
        made[1].step()
        job.note(f"step {step}: next rates", repr(made[1].get_last_lr()))


@scenario("names are cleared when an engine is destroyed, and another one is made for the model",
    works_around=("engine_names_keep_model",), **_one(stage="1"))  # fmt: skip
def names_cleared(job: Job) -> None:
    model = job.MLP()
    for first in (0, 3):
        engine = job.engine(model)
        for step in range(first, first + 3):
            job.train(engine, step)
        engine.destroy()
        if not job.plain:
            debug = importlib.import_module("deepspeed.utils.debug")
            debug.module_names.clear()
            debug.param_names.clear()


@scenario("the script sets the rate of the first step under a warm-up",
    works_around=("warmup_first_step",), release="0.14.2", **_one(stage="1"))  # fmt: skip
def first_rate_by_hand(job: Job) -> None:
    params = {"warmup_max_lr": space.SGD["lr"], "warmup_num_steps": 4, "warmup_type": "linear"}
    engine = job.engine(job.MLP(), scheduler={"type": "WarmupLR", "params": params})
    for step in range(5):
        if job.plain or step == 0:
            for group in engine.optimizer.param_groups:
                group["lr"] = space.SGD["lr"] * max(step - 1, 0) / 4
        job.train(engine, step)


@scenario("the script sets the rates of a cosine and behind its end itself", works_around=("warmup_cosine_past_end",),
    **_one(stage="1"))  # fmt: skip
def rates_behind_the_end_by_hand(job: Job) -> None:
    params = {"total_num_steps": 4, "warmup_num_steps": 2, "cos_min_ratio": 0.1}
    engine = job.engine(job.MLP(), scheduler={"type": "WarmupCosineLR", "params": params})
    for step in range(7):
        for group in engine.optimizer.param_groups:
            group["lr"] = space.SGD["lr"] * (1.0 if step < 4 else 0.1)
        job.train(engine, step)


@scenario("rates of Muon and of its Adam are set after the engine is made",
    works_around=("muon_param_groups",), release="0.19.6", reference=False, **_one(stage="1"))  # fmt: skip
def muon_rates_by_hand(job: Job) -> None:
    torch = job.torch
    torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    model = job.MLP()
    biases = [each for each in model.parameters() if each.ndim < 2]
    groups = [
        {"params": [each for each in model.parameters() if each.ndim > 1], "weight_decay": 0.01},
        {"params": biases, "weight_decay": 0.01},
    ]
    muon = {"type": "Muon", "params": {"lr": 0.1, "weight_decay": 0.01, "torch_adam": True}}
    whole = {**space.config(job.setting), "optimizer": muon}
    whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}
    engine = job._lab.initialize(model, whole, model_parameters=groups)
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.02 if group["use_muon"] else 0.01
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario("1-bit LAMB is given those parameters alone that have elements",
    works_around=("onebit_lamb_empty_parameter",), release="0.18.3", reference=False, **_one())  # fmt: skip
def onebit_lamb_without_nothing(job: Job) -> None:
    sys.modules.setdefault("cupy", ModuleType("cupy"))  # nothing of it is used but its name
    model = job.model(lambda self, x: self.body(x) + self.nothing.sum(), body=job.MLP())
    model.register_parameter("nothing", job.torch.nn.Parameter(job.torch.ones(0, 8)))
    whole = {
        **space.config(job.setting),
        "optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-3, "weight_decay": 0.01, "freeze_step": 2}},
    }
    initial = job._whole(model)
    engine = job._lab.initialize(model, whole, model_parameters=[each for each in model.parameters() if each.numel()])
    job._initial[id(engine)] = initial
    for step in range(4):
        job.train(engine, step)
