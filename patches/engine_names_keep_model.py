"""The model of an engine that is gone stays in memory, because a table of names for messages holds it.

Why: each engine writes the names of its model's modules and parameters into two tables of deepspeed.utils.debug, whose
    keys are the modules and parameters themselves. They stay there until another engine is made, or one is destroyed;
    through 0.12.6 destroy() leaves them, too. While a script makes its second model the first one takes its memory all
    the same, and so do layers that AutoEP or AutoTP have replaced.
How: the tables refer to modules and parameters weakly; names of what still exists are found as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EXTRACT = "deepspeed.utils.debug:debug_extract_module_and_param_names"


class NamesOfLiving(Mapping):  # type: ignore[type-arg]
    """The name of each object as long as it exists, looked up by identity."""

    def __init__(self, named: Iterable[tuple[str, Any]]) -> None:
        self._known = {id(each): (weakref.ref(each), name) for name, each in named}

    def __getitem__(self, each: Any) -> str:
        known = self._known.get(id(each))
        if known is None or known[0]() is not each:
            raise KeyError(each)
        return known[1]

    def __iter__(self) -> Iterator[Any]:
        return (each for reference, _ in self._known.values() if (each := reference()) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def names_of_living(named: Iterable[tuple[str, Any]]) -> NamesOfLiving:
    return NamesOfLiving(named)


PATCH = Patch(
    title="The model of an engine that is gone stays in memory until another engine is made: out of memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.12.0,<0.19.7"},
    changes=(
        Edit(
            _EXTRACT,
            replace="module_names = {module: name for name, module in model.named_modules()}",
            code="module_names = names_of_living(model.named_modules())",
            uses=(names_of_living,),
        ),
        Edit(
            _EXTRACT,
            replace="param_names = {param: name for name, param in model.named_parameters()}",
            code="param_names = names_of_living(model.named_parameters())",
            uses=(names_of_living,),
        ),
    ),
    symptom="",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8356": "fixed in 0.19.7"},
    fixed_in="0.19.7",
    fixed=(Source("deepspeed.utils.debug", "module_names = WeakIdNameMap()"),),
)

_STEPS, _LEARNING_RATE = 3, 0.1


def reproduce(lab: Lab) -> str:
    import gc

    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE)
    names = [name for name, _ in model.named_parameters()]

    _ = lab.deepspeed  # from here on the collector sees what is made
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    result = lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps")
    from deepspeed.utils import debug  # type: ignore[import-not-found,unused-ignore]

    found = [debug.debug_param2name(parameter) for parameter in model.parameters()]
    if found != names or debug.debug_module2name(model.head) != "head":
        raise AssertionError(f"the parameters' names are {', '.join(found)}")
    if debug.debug_param2name(torch.nn.Parameter(torch.ones(1))) != "unknown":
        raise AssertionError("a parameter of no engine has a name")
    alive = weakref.ref(model)
    known = sum(parameter.numel() for parameter in model.parameters())
    del model, engine
    gc.collect()
    if alive() is None:
        return f"{result}; without a reference to it the model is freed"
    debug.module_names, debug.param_names = {}, {}
    gc.collect()
    if alive() is not None:
        raise AssertionError("something else than the names keeps the model")
    raise BugPresent(f"without a reference to it the names keep the model, {known} numbers")
