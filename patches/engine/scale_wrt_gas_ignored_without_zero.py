"""ZeRO off, engine.backward(loss, scale_wrt_gas=False): gradients are divided by the accumulation steps anyway.

Why: since 0.19.6 a hook on the loss passed to `engine.backward` tells the hooks on the model's outputs to leave
    gradients unchanged. If the model returns that very loss and nothing is computed from it in between, which is the
    case with `scale_wrt_gas=False` and ZeRO off, both hooks are on one tensor, and the one that divides is older and
    runs first. With ZeRO the loss is multiplied by the loss scale in between. Nothing fails.
How: with `scale_wrt_gas=False` the engine continues with a copy of the loss, so that its hook runs first.
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
# whether nothing is computed from the loss before its hook is added, and it has one that divides
_IS_OUTPUT = (
    "not (isinstance(self.optimizer, ZeROOptimizer) or self.torch_autocast_z0_gradscaler or self.fp16_enabled())"
    " and any(getattr(each, '__name__', '') in ('backward_hook', 'once')"
    " for each in (loss._backward_hooks or {}).values())"
)

PATCH = Patch(
    title="ZeRO off: engine.backward(loss, scale_wrt_gas=False) divides gradients by the accumulation steps",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.6"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            after="gas_scaled_loss = loss",
            code="if not scale_wrt_gas:\n    loss = loss.clone()",
            effect="with scale_wrt_gas=False, gradients were not divided by the accumulation steps",
            when=f"not scale_wrt_gas and self.gradient_accumulation_steps() > 1 and {_IS_OUTPUT}",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8245": "introduced in 0.19.6",
    },
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
    _ = lab.torch  # before outputs imports it
    from ._outputs import Loss

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    # the engine adds up the losses of the micro-batches, and the reference takes their mean
    model = Loss(lab.models.MLP())
    expected = lab.reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE * _MICRO_BATCHES)
    model = Loss(lab.models.MLP())
    divided = lab.reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE)

    model = Loss(lab.models.MLP())
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        engine.backward(engine(inputs.to(lab.device), targets.to(lab.device)), scale_wrt_gas=False)
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        expected.parameters,
        {f"those of gradients divided by {_MICRO_BATCHES}": divided.parameters},
        after=f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches",
    )
