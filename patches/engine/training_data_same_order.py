"""deepspeed.initialize(training_data=…): every epoch of the returned loader silently has the same order.

Why: the loader makes a DistributedSampler that shuffles, whose order depends on its seed and its epoch, and nothing
    calls the sampler's `set_epoch`: neither the loader nor the engine, and the loader has no method of that name.
How: where a third pass begins in the order of the two before, which were read to their end, rank 0 warns once, and
    says what to do. The order stays: a job that resumes within an epoch and skips what it has seen counts on it, and
    ranks that have begun different numbers of iterations would share samples.
Workaround: Scripts call `engine.training_dataloader.data_sampler.set_epoch(epoch)`, or make their own loader.
    You can keep it; it causes no warning.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._warn_once import warn_once

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOADER = "deepspeed.runtime.dataloader:DeepSpeedDataLoader"


def tell_of_order(loader: Any) -> None:
    """Where a pass begins: say once that it repeats the order of the two before, which were read to their end."""
    from torch.utils.data.distributed import DistributedSampler

    sampler = loader.data_sampler
    if not isinstance(sampler, DistributedSampler) or type(sampler).__iter__ is not DistributedSampler.__iter__:
        return
    order, read_to_its_end = (sampler.epoch, sampler.seed), getattr(loader.data, "gi_frame", loader) is None
    before, passes = loader.__dict__.get("_dsfix_order", (None, 0))
    loader._dsfix_order = order, passes + 1 if order == before and read_to_its_end else 0
    if sampler.shuffle and loader._dsfix_order[1] == 2:
        ran(__name__)
        warn_once(
            __name__,
            "three passes over the loader of deepspeed.initialize(training_data=…) or engine.deepspeed_io used the "
            "same order, because set_epoch was not called. Call loader.data_sampler.set_epoch(epoch) before each "
            "epoch. For evaluation data, ignore this",
        )


PATCH = Patch(
    title="deepspeed.initialize(training_data=…): every epoch silently uses the same data order",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_LOADER}.__iter__",
            before="self._create_dataloader()",
            code="tell_of_order(self)",
            uses=(tell_of_order,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/commit/3354cff38b7f5f1cba45ffc16a18bbf3c933861a": "introduced"},
    present=(
        Source(
            f"{_LOADER}.__init__",
            "DistributedSampler(dataset=dataset, num_replicas=data_parallel_world_size, rank=data_parallel_rank)",
        ),
    ),
)

_SAMPLES, _EPOCHS = 32, 3


def reproduce(lab: Lab) -> str:
    from .._messages import Messages

    warnings = Messages(logging.WARNING)
    logging.getLogger("dsfix").addHandler(warnings)
    torch = lab.torch
    samples = torch.utils.data.TensorDataset(torch.arange(float(_SAMPLES)))
    model = lab.models.MLP()
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine = lab.initialize(model, config, model_parameters=model.parameters(), training_data=samples)
    loader = engine.training_dataloader
    loader.num_local_io_workers = 0

    def order() -> list[float]:
        return [number for (batch,) in loader for number in batch.tolist()]

    next(iter(loader))  # a look at one batch is no epoch
    orders = []
    for epoch in range(_EPOCHS):
        loader.data_sampler.set_epoch(epoch)
        orders.append(order())
    assert len(set(map(tuple, orders))) == _EPOCHS, "set_epoch does not change the order"
    assert not any("set_epoch" in line for line in warnings.lines), "warned of epochs that have their own order"
    orders = [order() for _ in range(_EPOCHS)]
    if not any("set_epoch" in line for line in warnings.lines):
        same = orders[1:] == orders[:-1]
        assert same, "no warning, and the epochs differ"
        raise BugPresent(f"{_EPOCHS} epochs begin with the samples {orders[0][:3]}, and nothing says so")
    return f"a warning says that {_EPOCHS} epochs have the same order, and how each gets its own"
