"""After torch.nn.utils.skip_init inside zero.Init, moving or casting a module partitions its parameters.

Why: for skip_init (ChatGLM and its relatives) zero.Init wraps `_apply` of every module class, so that the module is
    partitioned once it is off the meta device, and restores the original afterwards. Through 0.15.0 a class that
    inherits `_apply` gets, as its own, what it inherited at that moment: the wrapper, if its base class was wrapped
    first. The order is that in which a set is iterated, so it may differ from run to run. A module of such a class that
    is made later without zero.Init, in a reference or reward model for example, is partitioned by its first `.to()`,
    `.cuda()` or `.half()`: `state_dict()` has empty tensors for it, and a forward pass ends with a size mismatch.
How: a class without its own `_apply` has none afterwards, and inherits its base class's again. Until then nothing is
    changed: the same modules are partitioned inside zero.Init.
Changes: modules of such classes that are made after a zero.Init keep their weights. A checkpoint that was written
    without the patch has empty ones for them: create them again.
Workaround: Scripts give the class its own `_apply`, which calls `super()._apply`, or make the model before zero.Init.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

from .._shared import own, restore

if TYPE_CHECKING:
    from dsfix.lab import Lab

_HOOK = (
    "deepspeed.runtime.zero.partition_parameters:"
    "InsertPostInitMethodToModuleSubClasses.patch_init_and_builtins.<locals>.hook_for_skip_init.<locals>"
)
_ENABLE, _DISABLE = f"{_HOOK}._enable_class_apply", f"{_HOOK}._disable_class_apply"
_KEPT = "_old_apply_of_skip_init_hook"


PATCH = Patch(
    title="After skip_init inside zero.Init, .to() partitions modules created later: empty weights",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.0,<0.15.1"},
    changes=(
        Edit(
            _ENABLE,
            replace=f"cls.{_KEPT} = cls._apply",
            code=f"cls.{_KEPT} = own(cls, '_apply')",
            uses=(own,),
        ),
        Edit(
            _DISABLE,
            replace=f"cls._apply = cls.{_KEPT}",
            code=f"restore(cls, '_apply', '{_KEPT}')",
            uses=(restore,),
            effect=RAN,  # a module of this class may never be made later
            when=f"cls.__dict__.get('{_KEPT}', cls) is None",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4722": "introduced in 0.13.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/6388": "fixed in 0.15.1",
    },
    fixed_in="0.15.1",
    fixed=(Source(_ENABLE, "if '_apply' in cls.__dict__:\n    ..."),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from ._inherited import classes

    found = classes()
    before = [each() for each in found]
    with lab.deepspeed.zero.Init():
        for _ in range(2):
            try:
                inside = torch.nn.utils.skip_init(torch.nn.Linear, 4, 4)
            except NotImplementedError as error:
                raise CannotTell("skip_init is not possible inside zero.Init") from error
            assert hasattr(inside.weight, "ds_id"), "zero.Init has not partitioned the module made by skip_init"
    for model in (*before, *(each() for each in found)):
        name = type(model).__name__
        assert not hasattr(model.weight, "ds_id"), f"a {name} is partitioned before .to(): another bug"
        model.to(torch.float32)
        if hasattr(model.weight, "ds_id"):
            raise BugPresent(f"after skip_init .to() partitions a {name}: {tuple(model.weight.shape)}")
        model.check()
    return f"after skip_init .to() leaves models of {len(found)} classes whole, and their outputs right"
