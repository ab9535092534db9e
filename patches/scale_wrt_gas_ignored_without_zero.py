"""ZeRO off, engine.backward(loss, scale_wrt_gas=False): gradients are divided by the accumulation steps all the same.

Why: since 0.19.6 a hook on the loss that is given to `engine.backward` tells the hooks on what the model returns to
    leave gradients alone. Where the model returns that very loss and nothing is computed from it in between, which is
    so with `scale_wrt_gas=False` and ZeRO off, both hooks are on one tensor, and the one that divides is older and
    comes first. With ZeRO the loss scale is multiplied in between. Nothing fails.
How: with `scale_wrt_gas=False` the engine goes on with a copy of the loss, so that its hook is the first.
Changes: for those who pass `scale_wrt_gas=False` with gradient accumulation and ZeRO off, and whose model returns the
    loss, gradients become GAS times larger, and the gradient norm, clipping and SGD's steps with them. A checkpoint
    written without the patch holds right parameters of a job with too small gradients; Adam's moments in it are GAS and
    GAS² times too small, so that steps after resuming are too large for a while: warm the learning rate up anew, or
    resume without the optimizer's state.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/8245 (0.19.6); not known to be reported.
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it leaves such gradients alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"

PATCH = Patch(
    title="ZeRO off: engine.backward(loss, scale_wrt_gas=False) divides gradients by the accumulation steps",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.6"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            after="gas_scaled_loss = loss",
            code="if not scale_wrt_gas:\n    loss = loss.clone()",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/8245",),
    fixed_in=None,
    present=(
        Source(
            f"{_ENGINE}._backward_prologue_per_tensor",
            "graph_loss_scaled = _ENGINE_BACKWARD_GRAPH_TRACKER.is_current_graph_registered()",
        ),
    ),
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 4
_STEPS = 2


def reproduce(lab: Lab) -> str:
    assert lab.torch is not None  # with its device, before others import it
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.outputs import Loss
    from dsfix.lab.reference import largest_difference, train

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = Loss(MLP())  # the loss is the sum over the micro-batches, and the reference's their mean
    expected = train(model, steps, model, "SGD", lr=_LEARNING_RATE * _MICRO_BATCHES)
    model = Loss(MLP())
    divided = train(model, steps, model, "SGD", lr=_LEARNING_RATE)

    model = Loss(MLP())
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(engine(inputs.to(lab.device), targets.to(lab.device)), scale_wrt_gas=False)
        engine.step()

    parameters = lab.parameters(engine)
    done = f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches"
    difference = largest_difference(parameters, expected.parameters)
    if largest_difference(parameters, divided.parameters).relative < 1e-4 < difference.relative:
        raise BugPresent(f"{done} all gradients were divided by {_MICRO_BATCHES}: {difference}")
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
