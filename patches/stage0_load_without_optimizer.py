"""fp16 or bf16 without ZeRO: load_checkpoint(load_optimizer_states=False) is undone by the next step.

Why: without ZeRO the optimizer's wrapper holds fp32 copies of the weights. `load_checkpoint` loads the checkpoint's
    weights into the model, and the copies together with the optimizer's state. Where that is not asked for, the copies
    stay what they were; the first step updates them and writes them to the model: what was loaded is gone. Nothing
    fails. With `load_module_only=True` the copies are taken from the model, and in bf16 from 0.13.0 to 0.17.5.
How: with `load_optimizer_states=False`, too, the copies are taken from the model's weights.
Changes: for those who load so, training goes on from the weights that they loaded, rounded to fp16 or bf16. What a job
    has trained that was resumed without the patch, and its checkpoints, started from the weights that the script
    initialized or loaded into the model before `deepspeed.initialize`.
Upstream: not fixed, and not known to be reported; with ZeRO, and for the bf16 of its time, fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/4141 (0.13.0).
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it refreshes the copies.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine._load_checkpoint"

PATCH = Patch(
    title="fp16 or bf16 without ZeRO: load_checkpoint(load_optimizer_states=False) is undone by the next step",
    severity=Severity.WRONG_RESULT,
    # the fault is older, but nothing older than 0.12.0 has been run
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _LOAD,
            before="self.skipped_steps = checkpoint['skipped_steps']",
            code="""if (not load_optimizer_states and not self.zero_optimization()
        and hasattr(self.optimizer, 'refresh_fp32_params')):
    self.optimizer.refresh_fp32_params()""",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/4141",),
    fixed_in=None,
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    steps = [[regression_batch(rank=0, step=step)] for step in range(_STEPS + 1)]
    optimizer = functools.partial(torch.optim.SGD, lr=_LEARNING_RATE)

    engine = _engine(lab, MLP())
    _train(engine, steps[:_STEPS])
    saved = lab.parameters(engine)
    engine.save_checkpoint(str(lab.tmp))
    resumed = _engine(lab, MLP())
    loaded, _ = resumed.load_checkpoint(str(lab.tmp), load_optimizer_states=False)
    assert loaded, "no checkpoint was found"
    difference = largest_difference(lab.parameters(resumed), saved)
    assert difference.absolute == 0.0, f"of the weights loaded {difference}"
    _train(resumed, steps[_STEPS:])

    parameters = lab.parameters(resumed)
    masters: list[Any] = []
    initial, model = half.train(MLP(), torch.float16, [], optimizer), MLP()
    model.load_state_dict(saved)
    expected = half.train(model, torch.float16, steps[_STEPS:], optimizer, masters=masters)
    difference = largest_difference(parameters, expected)
    # the last step's update, found at the checkpoint's weights, of the initial ones
    gone_back = {name: initial[name] + master - saved[name] for name, master in zip(saved, masters)}
    if largest_difference(parameters, gone_back).relative < 0.002 < difference.relative:
        raise BugPresent(f"the step after loading is one from the initial weights, not the checkpoint's: {difference}")
    assert difference.relative < 0.002, f"after loading {difference}"
    return f"the step after loading is one from the checkpoint's weights within {difference.relative:.1e}"


def _engine(lab: Lab, model: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "initial_scale_power": 4},
    }
    return lab.initialize(model, config, model_parameters=model.parameters())


def _train(engine: Any, steps: Any) -> None:
    from dsfix.lab import half

    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(engine.module.parameters())))
        engine.step()
