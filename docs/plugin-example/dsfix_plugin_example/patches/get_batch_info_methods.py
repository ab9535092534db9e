"""`engine.get_batch_info()` returns three methods instead of three numbers.

Why: the docstring promises the batch size, the micro-batch size and the number of accumulation steps. The engine
    returns its methods of those names without calling them: `batch // world_size` is a TypeError, and a comparison
    with a number is silently False. Not reported upstream; the line is the same in all releases from 0.12.0 to 0.19.8.
How: calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"

PATCH = Patch(
    title="engine.get_batch_info() returns methods, not numbers",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=tuple(
        Edit(f"{_ENGINE}.get_batch_info", replace=method, code=f"{method}()")
        for method in (
            "self.train_batch_size",
            "self.train_micro_batch_size_per_gpu",
            "self.gradient_accumulation_steps",
        )
    ),
    # they are methods, not properties
    present=(
        Source(f"{_ENGINE}._take_model_step", "self.train_batch_size()"),
        Source(f"{_ENGINE}.set_train_batch_size", "self.train_micro_batch_size_per_gpu()"),
        Source(f"{_ENGINE}.is_gradient_accumulation_boundary", "self.gradient_accumulation_steps()"),
    ),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 3,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    returned = engine.get_batch_info()
    if all(callable(each) for each in returned):
        raise BugPresent(f"get_batch_info() returns the methods {', '.join(each.__name__ for each in returned)}")
    assert returned == (6, 2, 3), f"get_batch_info() returns {returned}"
    return f"get_batch_info() returns {returned}"
