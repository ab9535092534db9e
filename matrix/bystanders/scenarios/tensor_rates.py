"""Learning rates that are tensors, under DeepSpeed's schedules; the optimizer reads its group's in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import one_cycle, schedulers

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_STEPS, _SAVED = 6, 3
_OWN = (0.05, 0.02)  # the groups' own rates
_FITS: Any = {"stage": "012", "precision": ("fp32", "bf16"), "optimizer": ("client's SGD",)}


def _trained(
    job: Job,
    kind: str,
    params: dict[str, Any],
    expected: Callable[[int, float], float],
    make: Callable[[float], Any],
    shared: bool = False,
) -> None:
    """Some steps, of which a new engine makes the last from a checkpoint.

    expected: (step, the group's own rate) -> its rate in this step. make: a group's own rate -> a tensor. shared:
    whether the groups have one tensor.
    """
    config: Any = {"scheduler": {"type": kind, "params": params}}

    def start() -> Any:
        model = job.MLP()
        rates = [make(_OWN[0])] * 2 if shared else [make(rate) for rate in _OWN]
        parts = model.blocks, model.head
        groups = [{"params": list(part.parameters()), "lr": rate} for part, rate in zip(parts, rates)]
        options = {**space.SGD, "foreach": False}
        return job.engine(model, groups, lambda given: job.torch.optim.SGD(given, **options), **config)

    engine = start()
    for step in range(_STEPS):
        if step == _SAVED:
            job.save(engine, "half")
            engine = start()
            job.load(engine, "half")
        for number, own in enumerate(_OWN):
            group, rate = engine.optimizer.param_groups[number], expected(step, own)
            if job.plain:
                group["lr"] = rate
            job.note(f"step {step}: rate of group {number}", float(group["lr"]))
        job.train(engine, step)


def _double(job: Job) -> Callable[[float], Any]:
    return lambda rate: job.torch.tensor(rate, dtype=job.torch.float64)


@scenario("rates that are tensors rise in LRRangeTest", pinned=[{"optimizer": "client's SGD"}], **_FITS)
def tensor_rates_range_test(job: Job) -> None:
    params = {"lr_range_test_min_lr": 0.02, "lr_range_test_step_size": 2, "lr_range_test_step_rate": 1.0}
    _trained(job, "LRRangeTest", params, lambda step, _: 0.02 * (1 + step / 2), _double(job))


@scenario("rates that are tensors go up and down once", pinned=[{"optimizer": "client's SGD", "stage": "1"}], **_FITS)
def tensor_rates_one_cycle(job: Job) -> None:
    low, high = one_cycle._LOW, one_cycle._HIGH
    params = {
        "cycle_min_lr": low,
        "cycle_max_lr": high,
        "cycle_first_step_size": one_cycle._FIRST,
        "cycle_second_step_size": one_cycle._SECOND,
        "cycle_momentum": False,
    }
    _trained(job, "OneCycle", params, lambda step, _: low + (high - low) * one_cycle._share(step, 0), _double(job))


@scenario(
    "rates that are tensors of single precision warm up",
    pinned=[{"optimizer": "client's SGD", "stage": "2"}],
    **_FITS,
)
def tensor_rates_warmup(job: Job) -> None:
    params = {"warmup_max_lr": list(_OWN), **schedulers._LINEAR}
    _trained(job, "WarmupLR", params, lambda step, own: own * schedulers._linear(step - 1), job.torch.tensor)


@scenario(
    "two groups have a tensor in common, and warm up to rates of their own",
    pinned=[{"optimizer": "client's SGD"}],
    **_FITS,
)
def tensor_rates_warmup_shared(job: Job) -> None:
    params = {"warmup_max_lr": list(_OWN), **schedulers._LINEAR}
    _trained(job, "WarmupLR", params, lambda step, own: own * schedulers._linear(step - 1), _double(job), shared=True)


@scenario(
    "rates that are tensors of integers warm up and decay",
    pinned=[{"optimizer": "client's SGD", "stage": "1"}],
    **_FITS,
)
def tensor_rates_of_integers(job: Job) -> None:
    params = {"total_num_steps": schedulers._TOTAL, "warmup_max_lr": list(_OWN), **schedulers._LINEAR}
    _trained(
        job,
        "WarmupDecayLR",
        params,
        lambda step, own: own * schedulers._decaying(step - 1),
        lambda rate: job.torch.tensor(1),
    )


@scenario(
    "rates that are tensors warm up and follow a cosine", pinned=[{"optimizer": "client's SGD", "stage": "1"}], **_FITS
)
def tensor_rates_cosine(job: Job) -> None:
    _trained(
        job,
        "WarmupCosineLR",
        schedulers._COSINE,
        lambda step, own: own * schedulers._cosine(step - 1),
        _double(job),
    )
