"""DeepSpeed's warm-up schedules, from the config and from the script, with parameter groups and checkpoints."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_STEPS, _WARMUP, _TOTAL = 6, 2, 8
_LINEAR = {"warmup_num_steps": _WARMUP, "warmup_type": "linear"}
_COSINE = {"total_num_steps": _TOTAL, "warmup_min_ratio": 0.2, "cos_min_ratio": 0.1, **_LINEAR}
_OWN = (0.05, 0.02)  # the groups' own rates
_FITS: Any = {"precision": ("fp32", "bf16"), "optimizer": ("SGD", "client's SGD", "AdamW", "client's AdamW")}


def _linear(iteration: int) -> float:
    """The fraction of the full rate; the engine steps a schedule after the optimizer: -1 before the first step."""
    return min(max(iteration, 0) / _WARMUP, 1.0)


def _decaying(iteration: int) -> float:
    return min(_linear(iteration), (_TOTAL - iteration) / (_TOTAL - _WARMUP))


def _cosine(iteration: int) -> float:
    if iteration < _WARMUP:
        return 0.0 if iteration < 0 else 0.2 + 0.8 * iteration / _WARMUP
    half = (1 + math.cos(math.pi * (iteration - _WARMUP + 1) / (_TOTAL - _WARMUP))) / 2
    return 0.1 + 0.9 * half


def _groups(model: Any, rates: tuple[float, ...]) -> list[dict[str, Any]]:
    return [{"params": list(part.parameters()), "lr": rate} for part, rate in zip((model.blocks, model.head), rates)]


def _trained(job: Job, kind: str, params: dict[str, Any], rates: tuple[float, ...], share: Any, resumed: int) -> None:
    """resumed: the step before which a new engine resumes from a checkpoint; 0 for none."""
    config: Any = {"scheduler": {"type": kind, "params": params}}

    def start() -> Any:
        model = job.MLP()
        return job.engine(model, _groups(model, rates), **config)

    engine = start()
    for step in range(_STEPS):
        if resumed and step == resumed:
            job.save(engine, "resumed")
            engine = start()
            job.load(engine, "resumed")
        if job.plain:
            for group, rate in zip(engine.optimizer.param_groups, rates):
                group["lr"] = rate * share(step - 1)
        job.train(engine, step)


@scenario("two groups with the same rate warm up to it: no warmup_max_lr", pinned=[{"stage": "2"}], **_FITS)
def warmup_to_one_rate(job: Job) -> None:
    _trained(job, "WarmupLR", _LINEAR, (0.05, 0.05), _linear, 0)


@scenario(
    "each of two groups warms up to a rate from the config, and resumes from a checkpoint",
    works_around=("warmup_group_rates",),
    **_FITS,
)
def warmup_to_rates_named(job: Job) -> None:
    _trained(job, "WarmupLR", {"warmup_max_lr": list(_OWN), **_LINEAR}, _OWN, _linear, 3)


@scenario("a linear warm-up to a rate from the config, then a linear decay, with two groups", **_FITS)
def warmup_and_decay(job: Job) -> None:
    params = {"total_num_steps": _TOTAL, "warmup_max_lr": list(_OWN), **_LINEAR}
    _trained(job, "WarmupDecayLR", params, _OWN, _decaying, 4)


@scenario("a warm-up and a cosine with one group", pinned=[{"stage": "1"}], **_FITS)
def cosine_of_one_group(job: Job) -> None:
    config: Any = {"scheduler": {"type": "WarmupCosineLR", "params": _COSINE}}
    engine = job.engine(job.MLP(), **config)
    own = engine.optimizer.param_groups[0]["lr"]
    for step in range(_STEPS):
        if job.plain:
            engine.optimizer.param_groups[0]["lr"] = own * _cosine(step - 1)
        job.train(engine, step)


@scenario(
    "a warm-up and a cosine with two groups resume from a checkpoint of the first step",
    pinned=[{"stage": "2"}],
    **_FITS,
)
def cosine_resumed_at_once(job: Job) -> None:
    _trained(job, "WarmupCosineLR", _COSINE, _OWN, _cosine, 1)


@scenario("a warm-up and a cosine with two groups resume from a checkpoint", pinned=[{"stage": "3"}], **_FITS)
def cosine_resumed(job: Job) -> None:
    _trained(job, "WarmupCosineLR", _COSINE, _OWN, _cosine, 4)


@scenario(
    "the script steps DeepSpeed's cosine itself, reads its rates, and resumes from its state",
    works_around=("warmup_cosine_first_step",),
    pinned=[{"stage": "1"}],
    **_FITS,
)
def cosine_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    optimizer = engine.optimizer
    own = optimizer.param_groups[0]["lr"]

    def schedule() -> Any:
        made = importlib.import_module("deepspeed.runtime.lr_schedules").WarmupCosineLR(optimizer, **_COSINE)
        made.org_lrs = [own]  # it uses the rate that it finds as the full one
        return made

    made = None if job.plain else schedule()
    for step in range(_STEPS):
        if step == 3 and made:
            state = made.state_dict()
            made = schedule()
            made.load_state_dict(state)
        if job.plain or step in (0, 3):  # old releases do not set the first one
            for group in optimizer.param_groups:
                group["lr"] = own * _cosine(step - 1)
        job.train(engine, step)
        if made:
            made.step()
        job.note(f"step {step}: next rate", made.get_last_lr()[0] if made else own * _cosine(step))


@scenario("the script starts DeepSpeed's cosine in the middle", stage="0", pinned=[{"stage": "0"}], **_FITS)
def cosine_begun_in_the_middle(job: Job) -> None:
    engine = job.engine(job.MLP())
    own = engine.optimizer.param_groups[0]["lr"]
    made = None
    if not job.plain:
        make = importlib.import_module("deepspeed.runtime.lr_schedules").WarmupCosineLR
        made = make(engine.optimizer, last_batch_iteration=3, **_COSINE)
    for step in range(3):
        if job.plain and step:
            engine.optimizer.param_groups[0]["lr"] = own * _cosine(3 + step)
        job.train(engine, step)
        if made:
            made.step()
