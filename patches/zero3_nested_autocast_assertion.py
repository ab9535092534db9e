"""`torch.autocast` around the engine: "torch.autocast is enabled outside DeepSpeed, but not in the DeepSpeed config".

Why: 0.17.2 to 0.17.5 refuse a forward pass within `torch.autocast` unless the config has `torch_autocast`, under each
    ZeRO stage. Trainers that put forward pass and loss into one autocast context, as they do without DeepSpeed, stop
    with an AssertionError.
How: warns once, as upstream does from 0.17.6 on, and goes on. The engine's own autocast context, which is off where
    the config does not ask for it, is entered next: in the module the engine's precision holds, around it the user's.
Changes: for nobody who could train. What 0.17.1 computed within such a context was autocast in the module too; in
    0.17.6, and with the patch, it is not.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/6993 (0.17.2), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7543 (0.17.6).
Retire: when DeepSpeed 0.17.5 is no longer supported here.
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
        ),
    ),
    symptom=_MESSAGE,
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/6993",
        "https://github.com/deepspeedai/DeepSpeed/pull/7543",
    ),
    fixed_in="0.17.6",
    present=(Source(_FORWARD, "validate_nested_autocast(self)"),),
    fixed=(Source(_FORWARD, "autocast_if_enabled(self)"),),
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    def trained(nested: bool) -> dict[str, Any]:
        model = MLP()
        batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
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
    difference = largest_difference(parameters, expected)
    # up to 0.17.1 autocast reaches the module: bf16 rounds elsewhere
    assert difference.relative < 2e-2, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} steps the parameters are those without autocast within {difference.relative:.1e}"
