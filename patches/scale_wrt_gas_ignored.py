"""engine.backward(loss, scale_wrt_gas=False): gradients are divided by the gradient accumulation steps all the same.

Why: 0.18.3 moved the division from the loss to a hook on what the model returns, and the hook does not look at the
    argument. Who has divided the loss on his own gets gradients divided twice; the Trainer of transformers is one of
    them, for it divides by the number of tokens. Nothing fails; the returned loss is right.
How: `engine.backward` keeps the argument, and the hook leaves gradients alone while a backward pass with
    `scale_wrt_gas=False` runs. `loss.backward()` without the engine stays as it is.
Changes: for those who pass `scale_wrt_gas=False` with gradient accumulation, gradients become GAS times larger, and the
    gradient norm, clipping and SGD's steps with them. A checkpoint written by 0.18.3 holds right parameters of a job
    with too small gradients; Adam's moments in it are GAS and GAS² times too small, so that steps after resuming are
    too large for a while: warm the learning rate up anew, or resume without the optimizer's state.
Upstream: https://github.com/huggingface/accelerate/issues/3877, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/7665 (0.18.3), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7724 (0.18.4).
Retire: when DeepSpeed 0.18.3 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_HOOK = f"{_ENGINE}._backward_prologue_per_tensor"

PATCH = Patch(
    title="engine.backward(loss, scale_wrt_gas=False) divides gradients by the accumulation steps all the same",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3,<0.18.4"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            before="self._running_engine_backward = True",
            code="self._scale_wrt_gas = scale_wrt_gas",
        ),
        Edit(
            _HOOK,
            before="return grad / self.gradient_accumulation_steps()",
            # a pipeline may say that it runs without having been here
            code="if self._running_engine_backward and not self.__dict__.get('_scale_wrt_gas', True):\n    return grad",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/huggingface/accelerate/issues/3877",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665",
        "https://github.com/deepspeedai/DeepSpeed/pull/7724",
    ),
    fixed_in="0.18.4",
    fixed=(
        Source(_HOOK, "grad is not None and self._scale_wrt_gas"),
        Source(_HOOK, "graph_loss_scaled"),  # 0.19.6 divides the loss again
    ),
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 4
_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = MLP()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    model = MLP()
    twice = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE / _MICRO_BATCHES)

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
        engine.backward(loss / _MICRO_BATCHES, scale_wrt_gas=False)
        engine.step()

    parameters = lab.parameters(engine)
    done = f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches"
    difference = largest_difference(parameters, expected.parameters)
    if largest_difference(parameters, twice.parameters).relative < 1e-4 < difference.relative:
        raise BugPresent(f"{done} all gradients were divided by {_MICRO_BATCHES**2}: {difference}")
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
