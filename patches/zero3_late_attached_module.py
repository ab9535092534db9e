"""ZeRO-3, torch >= 2.5: a module attached after initialize: "'dict' object has no attribute '_in_forward'".

Why: in each forward pass the engine marks the parameter container of all modules. ZeRO-3 has replaced the containers
    by its own in `deepspeed.initialize`; a module attached since then (an adapter) has torch's, which is a plain dict
    from torch 2.5 on and takes no attribute: AttributeError.
How: gives such a module ZeRO-3's container before it is marked, as upstream does from 0.19.1 on, and leaves one that
    came during the forward pass alone. The parameters themselves stay what they are: whole, and in no optimizer of
    DeepSpeed. Up to 0.16.4 this stands in another function: see zero3_late_attached_module_0_16.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/6961, fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/8009 (0.19.1).
Retire: when DeepSpeed 0.19.0 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MARK, _UNMARK = "module._parameters._in_forward = True", "module._parameters._in_forward = False"

PATCH = Patch(
    title="ZeRO-3, torch >= 2.5: 'dict' object has no attribute '_in_forward' after attaching a module",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.5,<0.19.1", "torch": ">=2.5.0.dev0"},
    changes=(
        Edit(
            f"{_ENGINE}._forward_prologue",
            before=_MARK,
            code="if not hasattr(module._parameters, '_in_forward'):\n"
            "    from deepspeed.runtime.zero.parameter_offload import ZeROOrderedDict\n"
            "    module._parameters = ZeROOrderedDict(module, module._parameters)",
        ),
        Edit(
            f"{_ENGINE}._forward_epilogue",
            replace=_UNMARK,
            code=f"if hasattr(module._parameters, '_in_forward'):\n    {_UNMARK}",
        ),
    ),
    symptom="'dict' object has no attribute '_in_forward'",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/6961",
        "https://github.com/deepspeedai/DeepSpeed/pull/8009",
    ),
    fixed_in="0.19.1",
    present=(Source(f"{_ENGINE}._forward_prologue", f"for module in self.module.modules():\n    {_MARK}"),),
    fixed=(Source(f"{_ENGINE}._forward_prologue", "ensure_zero_ordered_dict(module)"),),
)


def reproduce(lab: Lab) -> str:
    from dsfix.lab.late_module import forward_with_late_module

    if not hasattr(lab.deepspeed.DeepSpeedEngine, "_forward_prologue"):
        raise CannotTell(f"DeepSpeed {lab.deepspeed.__version__} marks the containers in another function")
    return forward_with_late_module(lab)
