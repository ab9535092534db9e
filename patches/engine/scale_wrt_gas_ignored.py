"""engine.backward(loss, scale_wrt_gas=False): gradients are divided by the gradient accumulation steps anyway.

Why: 0.18.3 moved the division from the loss to a hook on the model's outputs, and the hook ignores the argument.
    Callers that already divide the loss get their gradients divided twice; the Trainer of transformers is one of them,
    because it divides by the number of tokens. Nothing fails; the returned loss is correct.
How: `engine.backward` stores the argument, and the hook leaves gradients unchanged during a backward pass with
    `scale_wrt_gas=False`. `loss.backward()` without the engine stays as it is.
Changes: for callers that pass `scale_wrt_gas=False`, gradients become larger by the accumulation steps, and with them
    the norm, clipping and SGD's steps. In a checkpoint written without the patch Adam's moments are too small: warm up
    the learning rate again after resuming, or resume without the optimizer state.
Workaround: Scripts leave the division to DeepSpeed: they neither divide the loss nor pass `scale_wrt_gas=False`.
    You can keep it. A loss that is multiplied by the accumulation steps to make up for the division has to be passed as
    it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_HOOK = f"{_ENGINE}._backward_prologue_per_tensor"

PATCH = Patch(
    title="engine.backward(loss, scale_wrt_gas=False) divides gradients by the accumulation steps anyway",
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
            # a pipeline may set _running_engine_backward without calling `backward`
            code="if self._running_engine_backward and not self.__dict__.get('_scale_wrt_gas', True):\n    return grad",
            effect="with scale_wrt_gas=False, gradients were not divided by the accumulation steps",
            when="self._running_engine_backward and not self.__dict__.get('_scale_wrt_gas', True)"
            " and self.gradient_accumulation_steps() > 1",
        ),
    ),
    upstream={
        "https://github.com/huggingface/accelerate/issues/3877": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7724": "fixed in 0.18.4",
    },
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
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = lab.models.MLP()
    expected = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    model = lab.models.MLP()
    twice = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE / _MICRO_BATCHES)

    model = lab.models.MLP()
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
    return lab.reference.compare(
        lab.parameters(engine),
        expected.parameters,
        {f"those of gradients divided by {_MICRO_BATCHES**2}": twice.parameters},
        after=f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches",
    )
