"""ZeRO-3: a sub-module that returns a number or a string: "vars() argument must have __dict__ attribute".

Why: after each module's forward pass, ZeRO-3 searches its outputs for parameters. It inspects outputs other than None,
    tensors, lists, tuples and dicts with `vars`, which accepts only objects with a `__dict__`: TypeError for an int, a
    float, a bool or a str, and for objects with `__slots__`.
How: gives DeepSpeed's module its own `vars`, which returns nothing for objects without `__dict__`. That module uses the
    name once, in a function that was renamed in 0.16.4.
Workaround: Scripts return the value in a tuple, or as a tensor. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from dsfix.patch import BugPresent, Patch, Provide, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.zero.parameter_offload"
_MESSAGE = "vars() argument must have __dict__ attribute"


def _attributes(module: Any) -> Callable[[Any], Any]:
    return lambda output: getattr(output, "__dict__", {})


PATCH = Patch(
    title="ZeRO-3: TypeError in vars() after a sub-module that returns a number or a string",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(Provide(_MODULE, "vars", _attributes),),
    symptom=r"_post_forward_module_hook[\s\S]*vars\(\) argument must have __dict__ attribute",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7442": "reported",
    },
    # where nothing calls vars, replacing it does no harm
    present=(Source(_MODULE, "FWD_MODULE_STACK = list()"),),
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Length(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> int:
            return int(x.shape[-1])

    class Kind(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> str:
            return "half" if x > 1 else "whole"

    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.length, self.kind = lab.models.MLP(), Length(), Kind()

        def forward(self, x: Any) -> Any:
            return self.net(x) * (0.5 if self.kind(self.length(x)) == "half" else 1.0)

    def loss(model: Any, inputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(model(inputs), targets)

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = Scaled()
    right = lab.reference.train(model, [[b] for b in batches], lambda *b: loss(model, *b), "SGD", lr=_LEARNING_RATE)

    model = Scaled()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        try:
            value = loss(engine, inputs.to(lab.device), targets.to(lab.device))
        except TypeError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"after the module that returns an int: TypeError: {error}") from error
            raise
        engine.backward(value)
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps")
