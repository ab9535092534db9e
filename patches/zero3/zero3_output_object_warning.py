"""ZeRO-3: NameError: name 'warned' is not defined, if a module returns a dataclass or another object.

Why: ZeRO-3's hooks look for tensors in the inputs and outputs of each module. For an object that is neither tensor,
    list, tuple nor dict they warn once, and remember that in a global variable. 0.13.2 moved the function to another
    file and left the variable behind: the first such object stops the job, on rank 0 only. The other ranks continue and
    wait for it.
How: reads the variable only if it is there, so that the warning is logged once, as before and since.
Workaround: Scripts return a tuple or a dict, or set `deepspeed.runtime.zero.utils.warned`. You can keep it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_UTILS = "deepspeed.runtime.zero.utils"
_TEST = "warning_msg_fn and not {} and dist.get_rank() == 0"

PATCH = Patch(
    title="ZeRO-3, a module that returns a dataclass or another object: NameError: name 'warned' is not defined",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.13.2,<0.14.5"},
    changes=(
        Edit(
            f"{_UTILS}:apply_to_tensors_only",
            replace=_TEST.format("warned"),
            code=_TEST.format("globals().get('warned')"),
            effect="the warning about an unknown output was logged (unpatched: NameError for 'warned')",
            when="warning_msg_fn and 'warned' not in globals()",
        ),
    ),
    symptom=r"name 'warned' is not defined",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5725": "fixed in 0.14.5",
    },
    fixed_in="0.14.5",
    fixed=(Source(_UTILS, "warned = False"),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    @dataclasses.dataclass
    class Output:
        value: Any

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.inner = lab.models.MLP()

        def forward(self, inputs: Any) -> Output:
            return Output(self.inner(inputs))

        def loss(self, inputs: Any, targets: Any) -> Any:
            return torch.nn.functional.mse_loss(self(inputs).value, targets)

    steps = [[lab.models.regression_batch(rank=0, step=step)] for step in range(2)]
    model = Model()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=0.1).parameters
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets)] in steps:
        try:
            output = engine(inputs.to(lab.device))
        except NameError as error:
            if "'warned'" in str(error):
                raise BugPresent(str(error)) from error
            raise
        engine.backward(torch.nn.functional.mse_loss(output.value, targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right, after=f"after {len(steps)} steps")
