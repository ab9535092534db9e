"""After zero.Init, a class that inherits `__init__` from a mixin no longer runs it: later instances lack attributes.

Why: zero.Init (also transformers' from_pretrained under ZeRO-3) wraps the `__init__` of every module class that defines
    one, and restores it at the end. Since 0.15.1 it also "restores" classes that it did not wrap: a class without its
    own `__init__` finds the saved one of a base class, and gets it as its own. If a mixin comes before that base class,
    the mixin's `__init__` no longer runs. `Qwen3ForSequenceClassification(GenericFor…, Qwen3Pre…)` then has no
    `num_labels`, `model` and `score`; the first instance, made inside zero.Init, is right. Models whose mixin only sets
    numbers train with wrong ones.
How: as in 0.17.6, only a class that has its own `__init__` by then gets one back. A class without one inherits as
    usual.
Changes: models that are made after a zero.Init, of classes whose mixin's `__init__` was lost. A checkpoint of such a
    model, if it could be trained at all, was trained without what the mixin sets.
Workaround: Scripts give the class its own `__init__`, which calls `super().__init__`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_RESTORE = (
    "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses.unpatch_init_and_builtins"
    ".<locals>._disable_class"
)

PATCH = Patch(
    title="After zero.Init, classes that inherit __init__ from a mixin skip it: missing attributes or wrong results",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.1,<0.17.6"},
    changes=(
        Edit(
            _RESTORE,
            replace="hasattr(cls, '_old_init')",
            code="'__init__' in cls.__dict__ and hasattr(cls, '_old_init')",
            effect=RAN,  # whether another instance will be made
            when="'__init__' not in cls.__dict__ and hasattr(cls, '_old_init')"
            " and '_old_init' not in next(c for c in cls.__mro__ if '__init__' in c.__dict__).__dict__",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6388": "introduced in 0.15.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/7566": "fixed in 0.17.6",
    },
    fixed_in="0.17.6",
    fixed=(Source(_RESTORE, "'__init__' in cls.__dict__ and hasattr(cls, '_old_init')"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from typing import Protocol

    torch = lab.torch

    class Scaled:
        """A mixin that is no module, as transformers' GenericForSequenceClassification."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

    class Base(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        scale = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.linear(x) * self.scale

    class Model(Scaled, Base):
        pass

    class Named(Protocol):
        """Gives a class without an `__init__` of its own one, when it is first used."""

    class Other(Named, Base):
        pass

    x = torch.ones(1, 4)
    outside = Model()
    with lab.deepspeed.zero.Init():
        Base()
    later = Model()
    later.load_state_dict(outside.state_dict())
    right, seen = outside.linear(x) * 2, later(x)
    if torch.equal(seen, right / 2) and later.scale == 1:
        raise BugPresent("after zero.Init a class no longer runs its mixin's __init__: the output is half as large")
    assert torch.equal(seen, right), f"after zero.Init expected {right}, got {seen}"
    if Version(lab.deepspeed.__version__) >= Version("0.15.1"):  # earlier ones do not make it inside zero.Init
        with lab.deepspeed.zero.Init():
            Other()
        assert Other()(x).shape == right.shape, "after zero.Init another class is partitioned"
    return "after zero.Init a class runs its mixin's __init__, and its output is right"
