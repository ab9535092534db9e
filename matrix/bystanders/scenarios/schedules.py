"""Schedules of the learning rate, and curricula."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.space import one_job

_SCHEDULED_STEPS, _WARMUP, _TOTAL = 6, 2, 8
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


def _scheduled(job: Job, kind: str, params: dict[str, Any], rates: tuple[float, ...], share: Any, resumed: int) -> None:
    """resumed: the step before which a new engine resumes from a checkpoint; 0 for none."""
    config: Any = {"scheduler": {"type": kind, "params": params}}

    def start() -> Any:
        model = job.MLP()
        return job.engine(model, _groups(model, rates), **config)

    engine = start()
    for step in range(_SCHEDULED_STEPS):
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
    _scheduled(job, "WarmupLR", _LINEAR, (0.05, 0.05), _linear, 0)


@scenario("each of two groups warms up to a rate from the config, and resumes from a checkpoint")
@settings(works_around=("warmup_group_rates",), **_FITS)
def warmup_to_rates_named(job: Job) -> None:
    _scheduled(job, "WarmupLR", {"warmup_max_lr": list(_OWN), **_LINEAR}, _OWN, _linear, 3)


@scenario("a linear warm-up to a rate from the config, then a linear decay, with two groups", **_FITS)
def warmup_and_decay(job: Job) -> None:
    params = {"total_num_steps": _TOTAL, "warmup_max_lr": list(_OWN), **_LINEAR}
    _scheduled(job, "WarmupDecayLR", params, _OWN, _decaying, 4)


@scenario("a warm-up and a cosine with one group", pinned=[{"stage": "1"}], **_FITS)
def cosine_of_one_group(job: Job) -> None:
    config: Any = {"scheduler": {"type": "WarmupCosineLR", "params": _COSINE}}
    engine = job.engine(job.MLP(), **config)
    own = engine.optimizer.param_groups[0]["lr"]
    for step in range(_SCHEDULED_STEPS):
        if job.plain:
            engine.optimizer.param_groups[0]["lr"] = own * _cosine(step - 1)
        job.train(engine, step)


@scenario("a warm-up and a cosine with two groups resume from a checkpoint of the first step")
@settings(pinned=[{"stage": "2"}], **_FITS)
def cosine_resumed_at_once(job: Job) -> None:
    _scheduled(job, "WarmupCosineLR", _COSINE, _OWN, _cosine, 1)


@scenario("a warm-up and a cosine with two groups resume from a checkpoint", pinned=[{"stage": "3"}], **_FITS)
def cosine_resumed(job: Job) -> None:
    _scheduled(job, "WarmupCosineLR", _COSINE, _OWN, _cosine, 4)


@scenario("the script steps DeepSpeed's cosine itself, reads its rates, and resumes from its state")
@settings(works_around=("warmup_cosine_first_step",), pinned=[{"stage": "1"}], **_FITS)
def cosine_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    optimizer = engine.optimizer
    own = optimizer.param_groups[0]["lr"]

    def schedule() -> Any:
        made = importlib.import_module("deepspeed.runtime.lr_schedules").WarmupCosineLR(optimizer, **_COSINE)
        made.org_lrs = [own]  # it uses the rate that it finds as the full one
        return made

    made = None if job.plain else schedule()
    for step in range(_SCHEDULED_STEPS):
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


_LOW, _HIGH, _FIRST, _SECOND = 0.01, 0.05, 2, 3
_STEPS = 6


def _share(step: int, stairs: int) -> float:
    """Of the way from the lowest to the highest rate; the schedule is stepped after the optimizer."""
    place = step % (_FIRST + _SECOND)
    way = place / _FIRST if place <= _FIRST else (_FIRST + _SECOND - place) / _SECOND
    return math.floor(way * stairs + 1e-9) / stairs if stairs else way


def _trained(job: Job, stairs: int, momentum: bool, resumed: int = 0) -> None:
    params: dict[str, Any] = {
        "cycle_min_lr": _LOW,
        "cycle_max_lr": _HIGH,
        "cycle_first_step_size": _FIRST,
        "cycle_second_step_size": _SECOND,
        "cycle_first_stair_count": stairs,
        "cycle_momentum": momentum,
        "cycle_min_mom": 0.8,
        "cycle_max_mom": 0.9,
    }
    config: Any = {"scheduler": {"type": "OneCycle", "params": params}}
    engine = job.engine(job.MLP(), **config)
    for step in range(_STEPS):
        if resumed and step == resumed:
            job.save(engine, "resumed")
            engine = job.engine(job.MLP(), **config)
            job.load(engine, "resumed")
        if job.plain:
            share = _share(step, stairs)
            for group in engine.optimizer.param_groups:
                group["lr"] = _LOW + (_HIGH - _LOW) * share
                if momentum and "betas" in group:
                    group["betas"] = (0.9 - 0.1 * share if step else 0.8, group["betas"][1])
        job.train(engine, step)


@scenario("a learning rate goes up and down once, and the momentum down and up", pinned=[{"stage": "2"}], **_FITS)
def one_cycle(job: Job) -> None:
    _trained(job, 0, True)


@scenario("a learning rate goes up and down once, and resumes from a checkpoint")
@settings(works_around=("one_cycle_beta2",), pinned=[{"stage": "1"}], **_FITS)
def one_cycle_resumed(job: Job) -> None:
    _trained(job, 0, False, 3)


@scenario("a learning rate goes up and down once, in stairs", pinned=[{"stage": "3"}], **_FITS)
def one_cycle_in_stairs(job: Job) -> None:
    _trained(job, 1, False)


_TENSOR_STEPS, _SAVED = 6, 3
_TENSORS: Any = {"stage": "012", "precision": ("fp32", "bf16"), "optimizer": ("client's SGD",)}


def _rates_trained(
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
    for step in range(_TENSOR_STEPS):
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


@scenario("rates that are tensors rise in LRRangeTest", pinned=[{"optimizer": "client's SGD"}], **_TENSORS)
def tensor_rates_range_test(job: Job) -> None:
    params = {"lr_range_test_min_lr": 0.02, "lr_range_test_step_size": 2, "lr_range_test_step_rate": 1.0}
    _rates_trained(job, "LRRangeTest", params, lambda step, _: 0.02 * (1 + step / 2), _double(job))


@scenario("rates that are tensors go up and down once")
@settings(pinned=[{"optimizer": "client's SGD", "stage": "1"}], **_TENSORS)
def tensor_rates_one_cycle(job: Job) -> None:
    low, high = _LOW, _HIGH
    params = {
        "cycle_min_lr": low,
        "cycle_max_lr": high,
        "cycle_first_step_size": _FIRST,
        "cycle_second_step_size": _SECOND,
        "cycle_momentum": False,
    }
    _rates_trained(job, "OneCycle", params, lambda step, _: low + (high - low) * _share(step, 0), _double(job))


@scenario("rates that are tensors of single precision warm up")
@settings(pinned=[{"optimizer": "client's SGD", "stage": "2"}], **_TENSORS)
def tensor_rates_warmup(job: Job) -> None:
    params = {"warmup_max_lr": list(_OWN), **_LINEAR}
    _rates_trained(job, "WarmupLR", params, lambda step, own: own * _linear(step - 1), job.torch.tensor)


@scenario("two groups have a tensor in common, and warm up to rates of their own")
@settings(pinned=[{"optimizer": "client's SGD"}], **_TENSORS)
def tensor_rates_warmup_shared(job: Job) -> None:
    params = {"warmup_max_lr": list(_OWN), **_LINEAR}
    _rates_trained(job, "WarmupLR", params, lambda step, own: own * _linear(step - 1), _double(job), shared=True)


@scenario("rates that are tensors of integers warm up and decay")
@settings(pinned=[{"optimizer": "client's SGD", "stage": "1"}], **_TENSORS)
def tensor_rates_of_integers(job: Job) -> None:
    params = {"total_num_steps": _TOTAL, "warmup_max_lr": list(_OWN), **_LINEAR}
    _rates_trained(
        job, "WarmupDecayLR", params, lambda step, own: own * _decaying(step - 1), lambda rate: job.torch.tensor(1)
    )


@scenario("rates that are tensors warm up and follow a cosine")
@settings(pinned=[{"optimizer": "client's SGD", "stage": "1"}], **_TENSORS)
def tensor_rates_cosine(job: Job) -> None:
    _rates_trained(job, "WarmupCosineLR", _COSINE, lambda step, own: own * _cosine(step - 1), _double(job))


_LEAST, _MOST, _STEP = 4, 16, 4
_LENGTHENED: Any = {"stage": "03", "pinned": [{"stage": "0"}]}

# the sampler knows nothing of stages; where ranks pad their part of the weights, no two runs are the same
_DRAWN: Any = {"reference": False, "stage": "0", "precision": ("fp32",), "pinned": [{"stage": "0"}]}


def _lengthened(job: Job, lengths: Sequence[int], kind: str, **schedule: int) -> None:
    """lengths: of the steps, as the documentation's formula has them."""

    class Truncating(job.torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mlp = job.MLP()

        def forward(self, x: Any, curriculum_seqlen: int) -> Any:
            return self.mlp(x * (job.torch.arange(_MOST, device=x.device) < curriculum_seqlen))

    options = {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": _LEAST,
        "max_difficulty": _MOST,
        "schedule_type": kind,
        "schedule_config": {"difficulty_step": _STEP, **schedule},
    }
    engine = job.engine(Truncating(), curriculum_learning=options)
    for step, length in enumerate(lengths):
        known = (length,) if job.plain else ()  # DeepSpeed's engine passes it on
        job.train(engine, step, lambda batch, known=known: job.loss(engine, batch, *known))


@scenario("sequences grow linearly with curriculum learning", works_around=("curriculum_below_minimum",), **_LENGTHENED)
def lengthened(job: Job) -> None:
    _lengthened(job, (8, 12, 16, 16), "fixed_linear", total_curriculum_step=3)


@scenario("sequences grow with the root of the steps", **_LENGTHENED)
def lengthened_by_root(job: Job) -> None:
    _lengthened(job, (8, 12, 12, 16), "fixed_root", total_curriculum_step=4, root_degree=2)


@scenario("random-LTD lengthens sequences from a multiple of its steps", release="0.18.9")
@settings(works_around=("random_ltd_below_minimum",), **one_job(stage="0", ranks="1"))
def lengthened_of_layers(job: Job) -> None:
    schedule = {
        "min_value": _LEAST,
        "max_value": _MOST,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 3, "seq_per_step": _STEP},
    }
    random_ltd = {
        "enabled": True,
        "total_layer_num": 2,
        "random_ltd_layer_num": 1,
        "random_ltd_layer_id": [0],
        "model_mask_name": None,
        "model_type": "decoder",
        "hidden_state_order": "batch_seq_dim",
        "random_ltd_schedule": schedule,
    }
    routing = {"enabled": True, "random_ltd": random_ltd}
    engine = job.engine(job.MLP(), data_efficiency={"enabled": True, "data_routing": routing})
    for step, length in enumerate((4, 8, 12, 16)):
        job.train(engine, step)
        was = length if job.plain else engine.random_ltd_scheduler.get_current_seq()
        job.note(f"step {step}: length", job.torch.tensor(float(was)))


def _engine(job: Job) -> Any:
    """An engine whose data loader draws samples by difficulty."""
    metric = {
        "index_to_sample_path": "none",
        "index_to_metric_path": "none",
        "difficulty_type": "value",
        "clustering_type": "single_cluster",
        "min_difficulty": 1,
        "max_difficulty": 2,
        "schedule_type": "fixed_discrete",
        "schedule_config": {"difficulty": [1, 2], "max_step": [99]},
    }
    curriculum = {
        "enabled": True,
        "data_cluster_path": str(job.tmp / "clusters"),
        "curriculum_metrics": {"length": metric},
    }
    sampling = {"enabled": True, "num_epochs": 9, "num_workers": 0, "curriculum_learning": curriculum}
    engine = job.engine(job.MLP(), data_efficiency={"enabled": True, "seed": 3, "data_sampling": sampling})
    rows = [job.batch(number) for number in range(12)]
    data = [(inputs[row].cpu(), targets[row].cpu()) for inputs, targets in rows for row in range(len(inputs))]
    engine.training_dataloader = engine.deepspeed_io(data)
    return engine


def _train(job: Job, engine: Any, steps: range) -> None:
    batches = iter(engine.training_dataloader)

    def loss(_: Any) -> Any:
        inputs, targets = next(batches)
        return job.loss(engine, (inputs.to(job.device), targets.to(job.device)))

    for step in steps:
        job.train(engine, step, loss)


@scenario("samples that a curriculum draws, with a checkpoint in between", **_DRAWN)
def drawn(job: Job) -> None:
    engine = _engine(job)
    _train(job, engine, range(2))
    job.save(engine, "two")
    _train(job, engine, range(2, 4))


@scenario("samples that a curriculum draws, from a checkpoint that was written before the first", **_DRAWN)
def drawn_from_the_start(job: Job) -> None:
    job.save(_engine(job), "none")
    engine = _engine(job)
    job.load(engine, "none")
    _train(job, engine, range(3))


@scenario("samples that a curriculum draws, resumed from a checkpoint written without dsfix", **_DRAWN)
def drawn_resumed_from_older(job: Job) -> None:
    engine = _engine(job)
    sampler = engine.training_dataloader.data_sampler
    whole = sampler.state_dict
    sampler.state_dict = lambda: {key: value for key, value in whole().items() if key != "np_rng_own_state"}
    _train(job, engine, range(2))
    job.save(engine, "two")
    engine = _engine(job)
    job.load(engine, "two")
    _train(job, engine, range(2, 4))


@scenario("the script gives each epoch of the training data its own order with set_epoch")
@settings(works_around=("training_data_same_order",), release="0.18.9", **one_job(ranks="2"))
def epochs_set_by_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    rows = [job.batch(number) for number in range(4)]
    data = [(inputs[row].cpu(), targets[row].cpu()) for inputs, targets in rows for row in range(len(inputs))]
    if job.plain:
        sampler = job.torch.utils.data.distributed.DistributedSampler(data, job.world_size, job.rank)
        loader = job.torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    else:
        loader = engine.deepspeed_io(data, 4, num_local_io_workers=0)
        sampler = loader.data_sampler
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            batch = inputs.to(job.device, job.dtype), targets.to(job.device)
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"epoch {epoch}")


@scenario("batches of variable size: DeepSpeed scales the rate linearly, and the script by the square root")
@settings(works_around=("variable_batch_lr_sqrt",), release="0.18.3", **one_job())
def rates_of_variable_batches(job: Job) -> None:
    torch, sizes = job.torch, (2, 4, 3)
    name = "deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr"
    module = None if job.plain else importlib.import_module(name)
    for first, linear in ((0, True), (3, False)):
        engine = job.engine(job.MLP())
        groups = engine.optimizer.param_groups
        rate, scheduler = groups[0]["lr"], None
        if module and linear:
            optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
            scheduler = module.lr_scheduler_for_variable_batch_size(4, list(sizes), None, optimizer)
        for step in range(first, first + 3):
            size = sizes[step - first]
            if not scheduler:
                groups[0]["lr"] = rate * (size / 4 if linear else math.sqrt(size / 4))
            job.train(engine, step, lambda batch, e=engine, n=size: job.loss(e, tuple(each[:n] for each in batch)))
            if scheduler:
                scheduler.step()
    ratio = torch.tensor(2.0)  # whose square root torch computes
    job.note("by the root of a tensor", module.scale_lr(4, ratio, 0.1, "sqrt") if module else 0.1 * (ratio / 4).sqrt())
