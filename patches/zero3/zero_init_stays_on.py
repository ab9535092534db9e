"""After zero.Init, classes without an `__init__` of their own still partition: modules created later fail when used.

Why: zero.Init (also transformers' from_pretrained under ZeRO-3) wraps the `__init__` of every module class, and
    restores the original at the end. Through 0.15.0 a class that inherits `__init__` gets, as its own, what it
    inherited at that moment: the wrapper, if its base class was wrapped first. The order is that in which a set is
    iterated, so it may differ from run to run. A module of such a class (`class Head(nn.Linear): pass`) that is made
    later without zero.Init, in a reference or reward model for example, has its own parameters partitioned:
    `state_dict()` has empty tensors for them, and a forward pass or `load_state_dict` ends with a size mismatch.
How: a class without its own `__init__` has none afterwards, and inherits its base class's again. Inside zero.Init
    nothing is changed.
Changes: modules of such classes that are made after a zero.Init have their weights. A checkpoint that was written
    without the patch has empty ones for them: create them again.
Workaround: Scripts give the class its own `__init__`, which calls `super().__init__`, or make the model before
    zero.Init. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

from .._shared import own, restore

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONTEXT = "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses"
_ENABLE = f"{_CONTEXT}.patch_init_and_builtins.<locals>._enable_class"
_SUBCLASS = f"{_CONTEXT}.patch_init_and_builtins.<locals>._init_subclass"
_DISABLE = f"{_CONTEXT}.unpatch_init_and_builtins.<locals>._disable_class"


PATCH = Patch(
    title="After zero.Init, modules created later are partitioned as well: empty weights or a size mismatch",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.1"},
    changes=(
        Edit(_ENABLE, replace="cls._old_init = cls.__init__", code="cls._old_init = own(cls, '__init__')", uses=(own,)),
        Edit(
            _SUBCLASS, replace="cls._old_init = cls.__init__", code="cls._old_init = own(cls, '__init__')", uses=(own,)
        ),
        Edit(
            _DISABLE,
            replace="cls.__init__ = cls._old_init",
            code="restore(cls, '__init__', '_old_init')",
            uses=(restore,),
            effect=RAN,  # a module of this class may never be made later
            when="cls.__dict__.get('_old_init', cls) is None",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5921": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6388": "fixed in 0.15.1",
    },
    fixed_in="0.15.1",
    fixed=(Source(_ENABLE, "if '__init__' in cls.__dict__:\n    ..."),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from ._inherited import classes

    found = classes()
    with lab.deepspeed.zero.Init():
        inside = found[-1]()
    assert hasattr(inside.weight, "ds_id"), "zero.Init has not partitioned the model made inside it"
    for each in found:
        later = each()
        if hasattr(later.weight, "ds_id"):
            raise BugPresent(f"after zero.Init a new {each.__name__} is partitioned: {tuple(later.weight.shape)}")
        later.check()
    return f"after zero.Init new models of {len(found)} classes are whole, and their outputs right"
