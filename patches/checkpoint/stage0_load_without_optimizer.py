"""fp16 or bf16 without ZeRO: the next step undoes load_checkpoint(load_optimizer_states=False).

Why: without ZeRO the optimizer's wrapper holds fp32 copies of the weights. `load_checkpoint` loads the checkpoint's
    weights into the model, and the copies together with the optimizer state. When that is not requested, the copies
    keep their values; the first step updates them and writes them to the model: the loaded weights are gone. Nothing
    fails. With `load_module_only=True` the copies are taken from the model, and likewise in bf16 from 0.13.0 to 0.17.5.
How: with `load_optimizer_states=False`, too, the copies are taken from the model's weights, except where they already
    round to the loaded weight: loading what the model already has, as scripts do to verify a checkpoint, changes
    nothing.
Changes: jobs that load this way continue from the loaded weights, rounded to fp16 or bf16. Without the patch they, and
    their checkpoints, started from the weights before `deepspeed.initialize`. A script that loads other weights
    temporarily must load the optimizer's states when it returns to its own weights; otherwise it gets rounded ones.
Workaround: Scripts call `engine.optimizer.refresh_fp32_params()` after load_checkpoint. You can keep it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from .._shared import take_weights

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine._load_checkpoint"

PATCH = Patch(
    title="fp16 or bf16 without ZeRO: the next step undoes load_checkpoint(load_optimizer_states=False)",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _LOAD,
            before="self.skipped_steps = checkpoint['skipped_steps']",
            code="""if (not load_optimizer_states and not self.zero_optimization()
        and hasattr(self.optimizer, 'refresh_fp32_params')):
    take_weights(self.optimizer)""",
            uses=(take_weights,),
            effect=RAN,  # the weights may be those that the optimizer has
            when="not load_optimizer_states and not self.zero_optimization()"
            " and hasattr(self.optimizer, 'refresh_fp32_params')",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4141": "related: fixed in 0.13.0 for ZeRO and bf16",
    },
    present=(
        # no else, and nothing after it
        Source(
            _LOAD,
            "if load_optimizer_states and self.optimizer is not None and not has_zero_optimizer_state:\n    ...\n"
            "if load_lr_scheduler_states and self.lr_scheduler is not None:\n    ...",
        ),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _half as half

    steps = [[lab.models.regression_batch(rank=0, step=step)] for step in range(_STEPS + 1)]
    optimizer = functools.partial(torch.optim.SGD, lr=_LEARNING_RATE)

    engine = _engine(lab, lab.models.MLP())
    _train(engine, steps[:_STEPS])
    saved = lab.parameters(engine)
    engine.save_checkpoint(str(lab.tmp))
    resumed = _engine(lab, lab.models.MLP())
    loaded, _ = resumed.load_checkpoint(str(lab.tmp), load_optimizer_states=False)
    assert loaded, "no checkpoint was found"
    difference = lab.reference.largest_difference(lab.parameters(resumed), saved)
    assert difference.absolute == 0.0, f"loaded weights: {difference}"
    _train(resumed, steps[_STEPS:])

    masters: list[Any] = []
    initial, model = half.train(lab.models.MLP(), torch.float16, [], optimizer), lab.models.MLP()
    model.load_state_dict(saved)
    expected = half.train(model, torch.float16, steps[_STEPS:], optimizer, masters=masters)
    # the last step's update, computed at the checkpoint's weights, applied to the initial ones
    gone_back = {name: initial[name] + master - saved[name] for name, master in zip(saved, masters)}
    return lab.reference.compare(
        lab.parameters(resumed),
        expected,
        {"those of a step from the initial weights": gone_back},
        within=0.002,
        after="one step after loading",
    )


def _engine(lab: Lab, model: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "initial_scale_power": 4},
    }
    return lab.initialize(model, config, model_parameters=model.parameters())


def _train(engine: Any, steps: Any) -> None:
    from .. import _half as half

    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(engine.module.parameters())))
        engine.step()
