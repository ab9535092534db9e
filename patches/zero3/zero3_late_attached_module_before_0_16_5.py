"""ZeRO-3, torch >= 2.5: a module attached after initialize: "'dict' object has no attribute '_in_forward'".

Why: in each forward pass the engine marks the parameter containers of all modules. ZeRO-3 replaces the containers with
    its own in `deepspeed.initialize`; a module attached later (an adapter) has torch's, a plain dict since torch 2.5,
    which accepts no attribute: AttributeError.
How: gives such a module ZeRO-3's container before it is marked, as upstream does since 0.19.1, and ignores a module
    that was attached during the forward pass; through 0.15.1 the container also accepts parameters that ZeRO-3 does not
    know. They do not change: they are not partitioned, and belong to no DeepSpeed optimizer. Since 0.16.5 this code is
    in other functions: see zero3_late_attached_module.
Workaround: Scripts give the module ZeRO-3's container, `module._parameters = ZeROOrderedDict(module,
    module._parameters)`, or attach it before `deepspeed.initialize`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MARK, _UNMARK = "module._parameters._in_forward = True", "module._parameters._in_forward = False"

PATCH = Patch(
    title="ZeRO-3 (before 0.16.5), torch 2.5 or later: no attribute '_in_forward' after attaching a module",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.16.5", "torch": ">=2.5.0.dev0"},
    changes=(
        Edit(
            f"{_ENGINE}.forward",
            before=_MARK,
            code="if not hasattr(module._parameters, '_in_forward'):\n"
            "    from deepspeed.runtime.zero.parameter_offload import ZeROOrderedDict\n"
            "    module._parameters = ZeROOrderedDict(module, module._parameters)",
            effect="a module attached later got ZeRO-3's container (unpatched: AttributeError)",
            when="type(module._parameters) is dict",
        ),
        Edit(
            f"{_ENGINE}.forward",
            replace=_UNMARK,
            code=f"if hasattr(module._parameters, '_in_forward'):\n    {_UNMARK}",
            effect="a module attached in the forward pass was skipped (unpatched: AttributeError)",
            when="type(module._parameters) is dict",
        ),
        Edit(
            "deepspeed.runtime.zero.parameter_offload:ZeROOrderedDict.__getitem__",
            replace="param.ds_status == ZeroParamStatus.NOT_AVAILABLE",
            code="getattr(param, 'ds_status', None) == ZeroParamStatus.NOT_AVAILABLE",
        ),
    ),
    symptom="'dict' object has no attribute '_in_forward'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6961": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8009": "fixed in 0.19.1",
    },
    continued_by="zero3_late_attached_module",
    present=(Source(f"{_ENGINE}.forward", f"for module in self.module.modules():\n    {_MARK}"),),
    fixed=(Source(f"{_ENGINE}._forward_prologue", "ensure_zero_ordered_dict(module)"),),
)


def reproduce(lab: Lab) -> str:
    from ._late_module import forward_with_late_module

    return forward_with_late_module(lab)
