"""Data: loaders, samplers, curricula."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public


def _rounded(gone: float, low: int, high: int, step: int) -> int:
    """Documented: a multiple of the step, between the first one that is not below the minimum and the maximum."""
    value = math.floor(gone * (high - low) + low)
    return min(max(value - value % step, math.ceil(low / step) * step), high)


@part("data/CurriculumScheduler", "its documentation: from minimum to maximum, in multiples of the step", examples=300)
def _curriculum(lab: Lab, draw: Draw) -> None:
    kind = draw("schedule_type", ("fixed_linear", "fixed_root", "fixed_discrete"))
    low, high = draw.integer("min", 1, 20), draw.integer("max", 20, 64)
    config: dict[str, Any] = {"min_difficulty": low, "max_difficulty": high, "schedule_type": kind}
    total, step = draw.integer("total", 1, 9), draw("step", (1, 2, 8, 16))
    if kind == "fixed_discrete":
        config["schedule_config"] = {"difficulty": [low, (low + high) // 2, high], "max_step": [total, total + 3]}
    else:
        config["schedule_config"] = {"total_curriculum_step": total, "difficulty_step": step, "root_degree": 2}
    scheduler = public("runtime.data_pipeline.curriculum_scheduler:CurriculumScheduler")(config)
    for number in range(1, 14):
        if kind == "fixed_discrete":
            wanted = low if number <= total else (low + high) // 2 if number <= total + 3 else high
        else:
            gone = number / total if kind == "fixed_linear" else (number / total) ** 0.5
            wanted = min(_rounded(gone, low, high, step), high)
        found = scheduler.update_difficulty(number)
        draw.assume(scheduler.state["current_difficulty"] < high or found == wanted or wanted == high)
        same(found, wanted, f"difficulty of step {number}")


@part("data/RandomLTDScheduler", "its documentation: from minimum to maximum, in multiples of the step", examples=300)
def _random_ltd(lab: Lab, draw: Draw) -> None:
    low, high = draw.integer("min", 1, 20), draw.integer("max", 20, 64)
    total, step = draw.integer("total", 1, 9), draw("step", (1, 2, 8, 16))
    schedule = {"min_value": low, "max_value": high, "schedule_type": "fixed_linear"}
    schedule["schedule_config"] = {"require_steps": total, "seq_per_step": step}
    scheduler = public("runtime.data_pipeline.data_routing.scheduler:RandomLTDScheduler")(
        {
            "total_layer_num": 4,
            "random_ltd_layer_num": 2,
            "global_batch_size": 3,
            "layer_token_lr_schedule": {"enabled": False},
            "random_ltd_schedule": schedule,
        }
    )
    consumed = 0
    for number in range(1, 12):
        scheduler.update_seq(number)
        wanted = _rounded(number / total, low, high, step)
        same(scheduler.get_current_seq(), wanted, f"length at step {number}")
        consumed += 3 * (wanted * 2 + high * 2)
        same(scheduler.state["consumed_layer_tokens"], consumed, f"tokens until step {number}")


@part("data/RepeatingLoader", "itertools.cycle", examples=60)
def _repeating(lab: Lab, draw: Draw) -> None:
    values = list(range(draw.integer("batches", 1, 5)))
    loader = public("runtime.dataloader:RepeatingLoader")(values)
    same([next(loader) for _ in range(12)], [values[number % len(values)] for number in range(12)], "batches")


@part("data/DeepSpeedDataLoader", "torch.utils.data.DataLoader with DistributedSampler", examples=80)
def _loader(lab: Lab, draw: Draw) -> None:
    size, batch, ranks = draw.integer("samples", 1, 12), draw.integer("batch", 1, 4), draw.integer("ranks", 1, 3)
    rank, drop = draw.integer("rank", 0, ranks - 1), draw.flag("drop_last")
    data = [torch.tensor(float(number)) for number in range(size)]
    collate = draw("collate_fn", (None, list))
    loader = public("runtime.dataloader:DeepSpeedDataLoader")(
        data, batch, False, 0, None, collate, 0, None, ranks, rank, drop
    )
    sampler = torch.utils.data.DistributedSampler(data, ranks, rank)
    wanted = torch.utils.data.DataLoader(data, batch, sampler=sampler, collate_fn=collate, drop_last=drop)
    same(len(loader), len(wanted), "length")
    for epoch in range(2):
        same(list(iter(loader)), list(wanted), f"batches of epoch {epoch}")


@part(
    "data/batch_by_seqlens", "its documentation: all samples that fit, none twice, none above max_tokens", examples=300
)
def _batches(lab: Lab, draw: Draw) -> None:
    batched = public("runtime.data_pipeline.data_sampling.variable_batch_size_and_lr:batch_by_seqlens")
    lengths = [draw.integer(f"length {number}", 1, 9) for number in range(draw.integer("samples", 2, 9))]
    order, most = draw("order", ("dataloader", "seqlen", "random")), draw.integer("max_tokens", 5, 20)
    found, sizes, _ = batched(lengths, most, sequence_picking_order=order, seed=1)
    used = [number for _, numbers in found for number in numbers]
    fitting = [number for number, length in enumerate(lengths) if length <= most]
    same(sorted(used), fitting, "samples that are used")
    same(sizes, [len(numbers) for _, numbers in found], "sizes")
    for _, numbers in found:
        assert sum(lengths[number] for number in numbers) <= most, f"{numbers} have more than {most}"


@part("data/scale_lr", "its documentation: linear, or by the square root", examples=60)
def _scaled(lab: Lab, draw: Draw) -> None:
    scale = public("runtime.data_pipeline.data_sampling.variable_batch_size_and_lr:scale_lr")
    base, size, rate = draw.integer("base", 1, 9), draw.integer("size", 1, 9), draw.number("rate", 0, 1)
    method = draw("method", ("linear", "sqrt", None, "none"))
    ratio = size / base
    wanted = rate * {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(str(method), 1.0)
    same(float(scale(base, size, rate, method)), wanted, "rate")


@part("data/MMapIndexedDataset", "what was written", examples=60)
def _indexed(lab: Lab, draw: Draw) -> None:
    module = "runtime.data_pipeline.data_sampling.indexed_dataset"
    dtype = draw("dtype", ("int32", "int64", "uint8", "uint16", "uint32"))
    np: Any = importlib.import_module("numpy")
    rows = [
        np.arange(draw.integer(f"size {number}", 1, 4)).astype(dtype) for number in range(draw.integer("rows", 1, 5))
    ]
    path = str(lab.tmp / "data")
    builder = public(f"{module}:MMapIndexedDatasetBuilder")(f"{path}.bin", dtype=np.dtype(dtype).type)
    for row in rows:
        builder.add_item_numpy(row) if draw.flag("numpy") else builder.add_item(torch.tensor(row.astype("int64")))
    builder.end_document()
    builder.finalize(f"{path}.idx")
    found = public(f"{module}:MMapIndexedDataset")(path, skip_warmup=True)
    same(len(found), len(rows), "rows")
    same([each.tolist() for each in found], [row.tolist() for row in rows], "rows")
    same([each.tolist() for each in found[0 : len(rows)]], [row.tolist() for row in rows], "a slice")
    at = draw.integer("from", 0, len(rows[0]) - 1)
    same(found.get(0, offset=at).tolist(), rows[0][at:].tolist(), "get()")


@part("data/DeepSpeedDataSampler", "its documentation: num_epochs times the samples", examples=40)
def _sampler(lab: Lab, draw: Draw) -> None:
    kind = public("runtime.data_pipeline.data_sampling.data_sampler:DeepSpeedDataSampler")
    samples, batch, steps = (
        draw.integer("samples", 2, 12),
        draw.integer("micro-batch", 1, 3),
        draw.integer("steps", 1, 2),
    )
    epochs = draw.integer("num_epochs", 1, 2)
    metric = {"difficulty_type": "value", "clustering_type": "single_cluster", "min_difficulty": 1, "max_difficulty": 2}
    metric |= {"schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 1}}
    learning = {"enabled": True, "data_cluster_path": str(lab.tmp), "curriculum_metrics": {"all": metric}}
    config = {"seed": 0, "data_sampling": {"num_epochs": epochs, "curriculum_learning": learning}}
    world = lab.torch.distributed.group.WORLD
    found = list(kind(config, samples, batch, 0, 1, world, steps, 0, drop_last=True))
    draw.assume(batch * steps <= samples)
    same(len(found), math.ceil(samples * epochs / batch), "micro-batches")
    assert all(len(each) == batch for each in found), "a micro-batch is smaller"
