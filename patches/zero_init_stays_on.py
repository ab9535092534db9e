"""After zero.Init, classes without an `__init__` of their own still partition: modules made later fail when used.

Why: zero.Init (also transformers' from_pretrained under ZeRO-3) wraps the `__init__` of every class of modules, and
    puts the former one back at the end. Through 0.15.0 a class that inherits `__init__` gets, as its own, what it
    inherited at that moment: where its base class was wrapped before it, the wrapper. The order is that of a set, so it
    may differ from run to run. A module of such a class (`class Head(nn.Linear): pass`) that is made later without
    zero.Init, in a reference or reward model for example, has its own parameters partitioned: `state_dict()` has empty
    tensors for them, and a forward pass or `load_state_dict` ends with a size mismatch.
How: a class that had no `__init__` of its own has none afterwards, and inherits that of its base class again. Inside
    zero.Init nothing is changed.
Changes: modules of such classes that are made after a zero.Init have their weights. A checkpoint that was written
    without the patch has empty ones for them: make them anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONTEXT = "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses"
_ENABLE = f"{_CONTEXT}.patch_init_and_builtins.<locals>._enable_class"
_SUBCLASS = f"{_CONTEXT}.patch_init_and_builtins.<locals>._init_subclass"
_DISABLE = f"{_CONTEXT}.unpatch_init_and_builtins.<locals>._disable_class"


def own_init(cls: type) -> Any:
    """The `__init__` that the class itself defines; None where it inherits one."""
    return cls.__dict__.get("__init__")


def restore_init(cls: type) -> None:
    """Give the class back what `own_init` found; one that was never wrapped stays as it is."""
    if "_old_init" not in cls.__dict__:
        return
    own = cls.__dict__["_old_init"]
    if own is not None:
        cls.__init__ = own  # type: ignore[misc]
    elif "__init__" in cls.__dict__:
        del cls.__init__  # type: ignore[misc]


PATCH = Patch(
    title="After zero.Init, modules made without it are partitioned, too: empty weights, or a size mismatch when used",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.15.1"},  # the bug is older, but no release before 0.12.0 has been run
    changes=(
        Edit(_ENABLE, replace="cls._old_init = cls.__init__", code="cls._old_init = own_init(cls)", uses=(own_init,)),
        Edit(_SUBCLASS, replace="cls._old_init = cls.__init__", code="cls._old_init = own_init(cls)", uses=(own_init,)),
        Edit(_DISABLE, replace="cls.__init__ = cls._old_init", code="restore_init(cls)", uses=(restore_init,)),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5921": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6388": "fixed in 0.15.1",
    },
    fixed_in="0.15.1",
    fixed=(Source(_ENABLE, "if '__init__' in cls.__dict__:\n    ..."),),
    device="cpu",
)

_CLASSES = 8  # only one of their 40320 orders would not show the bug


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))

        def forward(self, x: Any) -> Any:
            return x * self.weight

    classes: list[Any] = [Model]
    for number in range(_CLASSES):
        classes.append(type(f"Model{number}", (classes[-1],), {}))
    x, right = torch.ones(1, 4), torch.linspace(-1, 1, 4).view(1, 4)
    with lab.deepspeed.zero.Init():
        inside = classes[-1]()
    assert hasattr(inside.weight, "ds_id"), "zero.Init has not partitioned the model made inside it"
    for each in classes:
        later = each()
        if hasattr(later.weight, "ds_id"):
            raise BugPresent(f"after zero.Init a new {each.__name__} is partitioned: {tuple(later.weight.shape)}")
        assert torch.equal(later(x), right), f"{each.__name__}: expected {right}, got {later(x)}"
    return f"after zero.Init new models of {len(classes)} classes are whole, and their outputs right"
