"""ZeRO-3, torch >= 2.5: a module attached after initialize: "'dict' object has no attribute '_in_forward'".

Why: in each forward pass the engine marks the parameter containers of all modules. ZeRO-3 replaces the containers with
    its own in `deepspeed.initialize`; a module attached later (an adapter) has torch's, a plain dict since torch 2.5,
    which accepts no attribute: AttributeError.
How: gives such a module ZeRO-3's container before it is marked, as upstream does since 0.19.1, and ignores a module
    that was attached during the forward pass. The parameters themselves do not change: they are not partitioned, and
    belong to no DeepSpeed optimizer. Through 0.16.4 this code is in another function: see
    zero3_late_attached_module_before_0_16_5.
Workaround: Scripts give the module ZeRO-3's container, `module._parameters = ZeROOrderedDict(module,
    module._parameters)`, or attach it before `deepspeed.initialize`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MARK, _UNMARK = "module._parameters._in_forward = True", "module._parameters._in_forward = False"

PATCH = Patch(
    title="ZeRO-3, torch 2.5 or later: 'dict' object has no attribute '_in_forward' after attaching a module",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.5,<0.19.1", "torch": ">=2.5.0.dev0"},
    changes=(
        Edit(
            f"{_ENGINE}._forward_prologue",
            before=_MARK,
            code="if not hasattr(module._parameters, '_in_forward'):\n"
            "    from deepspeed.runtime.zero.parameter_offload import ZeROOrderedDict\n"
            "    module._parameters = ZeROOrderedDict(module, module._parameters)",
            effect="a module attached later got ZeRO-3's container (unpatched: AttributeError)",
            when="type(module._parameters) is dict",
        ),
        Edit(
            f"{_ENGINE}._forward_epilogue",
            replace=_UNMARK,
            code=f"if hasattr(module._parameters, '_in_forward'):\n    {_UNMARK}",
            effect="a module attached in the forward pass was skipped (unpatched: AttributeError)",
            when="type(module._parameters) is dict",
        ),
    ),
    symptom="'dict' object has no attribute '_in_forward'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6961": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8009": "fixed in 0.19.1",
    },
    fixed_in="0.19.1",
    present=(Source(f"{_ENGINE}._forward_prologue", f"for module in self.module.modules():\n    {_MARK}"),),
    fixed=(Source(f"{_ENGINE}._forward_prologue", "ensure_zero_ordered_dict(module)"),),
)


def reproduce(lab: Lab) -> str:
    from ._late_module import forward_with_late_module

    if not hasattr(lab.deepspeed.DeepSpeedEngine, "_forward_prologue"):
        raise CannotTell(f"DeepSpeed {lab.deepspeed.__version__} marks the containers in another function")
    return forward_with_late_module(lab)
