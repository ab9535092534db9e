"""Optimizers for which the config has no name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

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


@scenario(
    "torch's optimizers with two groups, one after another", pinned=_PINNED, precision=("fp32",), optimizer=("SGD",),
    clipping=("off",),
)  # fmt: skip
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
