"""'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam' masks every error from building the CPU optimizer.

Why: where the operator cannot be built (no compiler, no CUDA headers, a broken cache), the constructor of
    DeepSpeedCPUAdam fails with the reason. The incomplete object is then destroyed, and its `__del__` reads an
    attribute that was never set: this second traceback, after the relevant one, is the last thing in the log, and users
    have searched for it for years. DeepSpeedCPUAdagrad and DeepSpeedCPULion have the same bug.
How: `__del__` does nothing where there is nothing to destroy. The error itself is unchanged: it states what to do.
Workaround: None in the script; the first traceback in the log gives the reason.
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
    title="DeepSpeedCPUAdam: no attribute 'ds_opt_adam' masks the error from building the operator",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=tuple(_edit(name, low) for name, low in _OPTIMIZERS.items()),
    symptom=r"object has no attribute 'ds_opt_(adam|adagrad|lion)'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/1846": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5723": "reported",
    },
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

    torch, ops = lab.torch, lab.deepspeed.ops

    def fail(*_: Any) -> None:
        raise RuntimeError(_REASON)

    seen: list[str] = []
    with mock.patch.object(sys, "unraisablehook", lambda raised: seen.append(str(raised.exc_value))):
        for name, low in _OPTIMIZERS.items():
            package = getattr(ops, low)
            module = sys.modules[f"{package.__name__}.cpu_{low}"]
            with mock.patch.object(getattr(module, f"CPU{name}Builder"), "load", fail):
                reported = ""
                try:
                    getattr(package, f"DeepSpeedCPU{name}")([torch.nn.Parameter(torch.zeros(1))])
                except RuntimeError as error:
                    # 0.19.8 reports which operator, with the reason as the cause
                    reported = str(error.__cause__ or error)
            assert reported == _REASON, f"DeepSpeedCPU{name} was created without its operator, or reported {reported!r}"
            gc.collect()
    wrong = [message for message in seen if "object has no attribute 'ds_opt_" in message]
    assert len(wrong) == len(seen), seen
    if wrong:
        raise BugPresent(f"after {_REASON!r}, from {len(wrong)} of {len(_OPTIMIZERS)} optimizers: {wrong[0]}")
    return f"{len(_OPTIMIZERS)} optimizers that cannot be built report the reason and nothing else"
