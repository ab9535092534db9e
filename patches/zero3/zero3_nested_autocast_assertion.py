"""`torch.autocast` around the engine: "torch.autocast is enabled outside DeepSpeed, but not in the DeepSpeed config".

Why: 0.17.2 to 0.17.5 reject a forward pass within `torch.autocast` unless the config has `torch_autocast`, with every
    ZeRO stage. Trainers that run forward pass and loss in one autocast context, as they do without DeepSpeed, stop with
    an AssertionError.
How: warns once, as upstream does since 0.17.6, and continues. The engine then enters its own autocast context, which is
    off unless the config asks for it: inside the module the engine's precision applies, around it the user's.
Changes: nothing for jobs that could train. 0.17.1 applied such a context to the module too; 0.17.6, and the patch, do
    not.
Workaround: Scripts turn autocast off around the engine's call, or replace `validate_nested_autocast` and make
    `engine.torch_autocast_enabled` follow the context, which then applies inside the module. You can keep it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_VALIDATE = "deepspeed.runtime.torch_autocast:validate_nested_autocast"
_FORWARD = "deepspeed.runtime.engine:DeepSpeedEngine.forward"
_MESSAGE = "torch.autocast is enabled outside DeepSpeed, but not in the DeepSpeed config"

PATCH = Patch(
    title="torch.autocast around the engine: AssertionError, enabled outside DeepSpeed but not in its config",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.2,<0.17.6"},
    changes=(
        Edit(
            _VALIDATE,
            before="if torch.is_autocast_enabled():\n    ...",
            code="if torch.is_autocast_enabled() and not engine.torch_autocast_enabled():\n"
            "    if not _WARNED_NESTED_AUTOCAST:\n"
            "        logger.warning('torch.autocast around the DeepSpeed engine has no effect inside the engine')\n"
            "        _WARNED_NESTED_AUTOCAST = True\n"
            "    return",
            effect="torch.autocast around the engine was accepted (unpatched: AssertionError)",
            when="torch.is_autocast_enabled() and not engine.torch_autocast_enabled()",
        ),
    ),
    symptom=_MESSAGE,
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6993": "introduced in 0.17.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7543": "fixed in 0.17.6",
    },
    fixed_in="0.17.6",
    present=(Source(_FORWARD, "validate_nested_autocast(self)"),),
    fixed=(Source(_FORWARD, "autocast_if_enabled(self)"),),
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    def trained(nested: bool) -> dict[str, Any]:
        model = lab.models.MLP()
        batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            with torch.autocast("cuda", dtype=torch.bfloat16) if nested else contextlib.nullcontext():
                assert torch.is_autocast_enabled() == nested, "this device has no autocast"
                outputs = engine(inputs.to(lab.device, torch.bfloat16)).float()
                loss = torch.nn.functional.mse_loss(outputs, targets.to(lab.device))
            engine.backward(loss)
            engine.step()
        return lab.parameters(engine)

    expected = trained(nested=False)
    try:
        parameters = trained(nested=True)
    except AssertionError as error:
        if _MESSAGE in str(error):
            raise BugPresent(f"in the first forward pass: {str(error).split('. ')[0]}") from error
        raise
    difference = lab.reference.largest_difference(parameters, expected)
    # through 0.17.1 autocast reaches the module: bf16 rounds elsewhere
    assert difference.relative < 2e-2, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters match those without autocast within {difference.relative:.1e}"
