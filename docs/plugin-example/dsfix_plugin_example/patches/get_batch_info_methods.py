"""`engine.get_batch_info()` returns three methods in place of three numbers.

Why: the docstring promises the batch size, the micro-batch size and the number of accumulation steps. What comes back
    are the engine's methods of those names, without having been called: `batch // world_size` is a TypeError, and a
    comparison with a number is silently False.
How: calls them.
Upstream: not reported; the line is the same in all releases from 0.12.0 to 0.19.8.
Retire: when https://github.com/deepspeedai/DeepSpeed has a release that calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="engine.get_batch_info() returns methods, not numbers",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=tuple(
        Edit("deepspeed.runtime.engine:DeepSpeedEngine.get_batch_info", replace=method, code=f"{method}()")
        for method in (
            "self.train_batch_size",
            "self.train_micro_batch_size_per_gpu",
            "self.gradient_accumulation_steps",
        )
    ),
    symptom="",
    upstream=(),
    fixed_in=None,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    assert lab.torch
    from dsfix.lab.models import MLP

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 3,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    told = engine.get_batch_info()
    if all(callable(each) for each in told):
        raise BugPresent(f"get_batch_info() returns the methods {', '.join(each.__name__ for each in told)}")
    assert told == (6, 2, 3), f"get_batch_info() returns {told}"
    return f"get_batch_info() returns {told}"
