"""wandb 0.20 or newer in the config: TypeError at the first logged step.

Why: through 0.17.1 the monitor passes `sync=` to `wandb.log`, an argument that wandb 0.20 has removed.
How: the argument is not passed. Older releases of wandb treat None, which the monitor passes unless a script calls its
    `log` with another value, as their default.
Workaround: The environment pins wandb below 0.20. You can keep it.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_LOG = "deepspeed.monitor.wandb:WandbMonitor.log"
_MESSAGE = "got an unexpected keyword argument 'sync'"


def without_sync(log: Any, data: Any, step: Any, commit: Any, sync: Any) -> Any:
    """Calls `wandb.log`, with `sync` only if the caller of the monitor has set it."""
    if sync is None and _is_removed():
        took_effect(__name__, "wandb.log was called without its removed argument sync")
    return log(data, step=step, commit=commit) if sync is None else log(data, step=step, commit=commit, sync=sync)


@functools.cache
def _is_removed() -> bool:
    """Whether there is no installed wandb that still has the argument."""
    from dsfix import versions

    major, minor = [*(versions.installed("wandb") or "0.20").split("."), "0"][:2]
    return not (major == "0" and minor.isdecimal() and int(minor) < 20)


def _meets(job: Job) -> bool:
    return job.get("wandb", "enabled") is True and _is_removed()


PATCH = Patch(
    title="wandb 0.20 or later in the config: TypeError, log() got an unexpected keyword argument 'sync'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.17.2"},
    changes=(
        Edit(
            _LOG,
            replace="return wandb.log(data, step=step, commit=commit, sync=sync)",
            code="return without_sync(wandb.log, data, step, commit, sync)",
            uses=(without_sync,),
        ),
    ),
    symptom=r"deepspeed/monitor/wandb\.py.*, in log\n(.*\n){1,20}?TypeError: .*unexpected keyword argument 'sync'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7381": "reported",
        "https://github.com/wandb/wandb/pull/9940": "introduced in wandb 0.20.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7383": "fixed in 0.17.2",
    },
    fixed_in="0.17.2",
    fixed=(Source(_LOG, "return wandb.log(data, step=step, commit=commit)"),),
    config=_meets,
)

_STEPS = 2


class _Wandb(ModuleType):
    """wandb since 0.20, as far as the monitor uses it; the real one is large, and writes into the job's folder."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.logged: list[str] = []

    def init(self, **_: Any) -> None:
        pass

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.logged.extend(data)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    wandb = _Wandb()
    sys.modules["wandb"] = wandb
    model: Any = lab.models.MLP()
    config = {
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "wandb": {"enabled": True, "project": "reproduction"},
        "steps_per_print": 1,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    try:
        for step in range(_STEPS):
            inputs, targets = lab.models.regression_batch(rank=0, step=step, size=1)
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
    except TypeError as error:
        if _MESSAGE in str(error):
            raise BugPresent(f"at the first step: {error}") from error
        raise
    finally:
        del sys.modules["wandb"]
    if wandb.logged.count("Train/Samples/lr") != _STEPS:
        raise AssertionError(f"after {_STEPS} steps wandb has {wandb.logged}")
    return f"wandb has the learning rate of {_STEPS} steps"
