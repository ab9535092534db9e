"""'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam' after each error in building the CPU optimizer.

Why: where the operator cannot be built (no compiler, no CUDA headers, a broken cache) the constructor of
    DeepSpeedCPUAdam fails with the reason. The half-made object is then destroyed, and its `__del__` asks for what was
    never set: one more traceback, behind the one that counts. It is the last thing that the log shows, and users
    searched for it for years. DeepSpeedCPUAdagrad and DeepSpeedCPULion have the same.
How: `__del__` does nothing where there is nothing to destroy. The error itself stays what it is: it says what to do.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/1846 and 5723; 0.19.8 has the check.
Retire: when DeepSpeed 0.19.7 is no longer supported here.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZERS = {"Adam": "adam", "Adagrad": "adagrad", "Lion": "lion"}


def _edit(name: str, low: str) -> Edit:
    destroy = f"self.ds_opt_{low}.destroy_{low}(self.opt_id)"
    target = f"deepspeed.ops.{low}.cpu_{low}:DeepSpeedCPU{name}.__del__"
    return Edit(target, before=destroy, code=f'if not hasattr(self, "ds_opt_{low}"):\n    return')


PATCH = Patch(
    title="the error in building DeepSpeedCPUAdam is hidden behind: no attribute 'ds_opt_adam'",
    severity=Severity.USABILITY,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=tuple(_edit(name, low) for name, low in _OPTIMIZERS.items()),
    symptom=r"object has no attribute 'ds_opt_(adam|adagrad|lion)'",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/1846",
        "https://github.com/deepspeedai/DeepSpeed/issues/5723",
    ),
    fixed_in="0.19.8",
    fixed=(
        Source("deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam.__del__", "if hasattr(self, 'ds_opt_adam'): ..."),
        Source(
            "deepspeed.ops.adagrad.cpu_adagrad:DeepSpeedCPUAdagrad.__del__", "if hasattr(self, 'ds_opt_adagrad'): ..."
        ),
        Source("deepspeed.ops.lion.cpu_lion:DeepSpeedCPULion.__del__", "if hasattr(self, 'ds_opt_lion'): ..."),
    ),
    device="cpu",
)

_REASON = "Error building extension"


def reproduce(lab: Lab) -> str:
    from unittest import mock

    torch = lab.torch
    _ = lab.deepspeed
    from deepspeed.ops import adagrad, adam, lion  # type: ignore[import-not-found,unused-ignore]

    def fail(*_: Any) -> None:
        raise RuntimeError(_REASON)

    seen: list[str] = []
    with mock.patch.object(sys, "unraisablehook", lambda raised: seen.append(str(raised.exc_value))):
        for package, name in ((adam, "Adam"), (adagrad, "Adagrad"), (lion, "Lion")):
            module = sys.modules[f"{package.__name__}.cpu_{name.lower()}"]
            with mock.patch.object(getattr(module, f"CPU{name}Builder"), "load", fail):
                said = ""
                try:
                    getattr(package, f"DeepSpeedCPU{name}")([torch.nn.Parameter(torch.zeros(1))])
                except RuntimeError as error:
                    # 0.19.8 says which operator, with the reason as the cause
                    said = str(error.__cause__ or error)
            assert said == _REASON, f"DeepSpeedCPU{name} was made without its operator, or said {said!r}"
            gc.collect()
    wrong = [message for message in seen if "object has no attribute 'ds_opt_" in message]
    assert len(wrong) == len(seen), seen
    if wrong:
        raise BugPresent(f"after {_REASON!r}, from {len(wrong)} of {len(_OPTIMIZERS)} optimizers: {wrong[0]}")
    return f"{len(_OPTIMIZERS)} optimizers that cannot be built say why, and nothing else"
