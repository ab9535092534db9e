"""The model of a discarded engine stays in memory, because a table of names for messages refers to it.

Why: each engine writes the names of its model's modules and parameters into two tables of deepspeed.utils.debug, whose
    keys are the modules and parameters themselves. They stay there until another engine is made, or one is destroyed;
    through 0.12.6 destroy() leaves them, too. While a script makes its second model, the first one still takes its
    memory, and so do layers that AutoEP or AutoTP have replaced.
How: the tables refer to modules weakly, and find a parameter through its module; names of what still exists are found
    as before. No weak reference points to a parameter: torch could not swap it then, which `module.to()` does for
    tensor subclasses (quantized weights), and for all parameters if the script has asked for it.
Workaround: Scripts call `clear()` on `module_names` and `param_names` of `deepspeed.utils.debug` after `destroy()`.
    You can keep it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EXTRACT = "deepspeed.utils.debug:debug_extract_module_and_param_names"


class NamesOfLiving(Mapping):  # type: ignore[type-arg]
    """The name of each object as long as it exists, looked up by identity, without a walk through a large module.

    named: the name, the object, and where it is: a module and the key of its own parameter, None for the module itself.
    """

    def __init__(self, named: Iterable[tuple[str, Any, Any, str | None]]) -> None:
        self._known = {id(each): (weakref.ref(owner), key, name) for name, each, owner, key in named}

    def __getitem__(self, each: Any) -> str:
        reference, key, name = self._known[id(each)]
        owner = reference()
        own = {} if owner is None else owner._parameters  # of a ScriptModule it has no get()
        if owner is each or (key in own and own[key] is each):
            return name
        for key in [key for key, living in own.items() if living is each]:  # as in a ParameterList after insert()
            self._known[id(each)] = reference, key, name
            return name
        raise KeyError(each)

    def __iter__(self) -> Iterator[Any]:
        for number, (reference, _, _) in list(self._known.items()):
            owner = reference()
            living = () if owner is None else (owner, *owner._parameters.values())
            yield from [each for each in living if id(each) == number][:1]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Scripts do so to let the model go."""
        self._known.clear()


def names_of_modules(model: Any) -> NamesOfLiving:
    return NamesOfLiving((name, module, module, None) for name, module in model.named_modules())


def names_of_parameters(model: Any) -> NamesOfLiving:
    places: dict[int, tuple[Any, str]] = {}  # of a shared parameter the first, as its name
    for module in model.modules():
        for key, each in module._parameters.items():
            places.setdefault(id(each), (module, key))
    return NamesOfLiving(
        (name, each, *places[id(each)]) for name, each in model.named_parameters() if id(each) in places
    )


PATCH = Patch(
    title="A discarded engine's model stays in memory until the next engine is created: out of memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.12.0,<0.19.7"},
    changes=(
        Edit(
            _EXTRACT,
            replace="module_names = {module: name for name, module in model.named_modules()}",
            code="module_names = names_of_modules(model)",
            uses=(names_of_modules,),
            effect=RAN,  # whether the model outlives its engine, nothing shows yet
        ),
        Edit(
            _EXTRACT,
            replace="param_names = {param: name for name, param in model.named_parameters()}",
            code="param_names = names_of_parameters(model)",
            uses=(names_of_parameters,),
        ),
    ),
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
    from deepspeed.utils import debug

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
