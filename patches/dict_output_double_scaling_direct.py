"""loss.backward() with gradient accumulation, the model returns loss and logits: gradients are divided twice.

Why: since 0.18.3 a hook on each tensor that the model returns divides its gradient by the gradient accumulation steps
    (GAS). Where the loss is returned along with what it was computed from, as in {"loss": …, "logits": …}, the gradient
    passes two hooks. For `engine.backward(loss)` this ended in 0.19.6, see dict_output_double_scaling; for
    `loss.backward()` and `engine.scale(loss).backward()` it did not. Nothing fails.
How: where a dict, list or tuple that the model returns contains a loss (of one element) and other tensors, each is
    replaced by a view of itself, and the views get the hooks. No view was computed from another, so a gradient passes
    one hook, whatever the caller computes from them. Applied only when named: tensors that the caller gets elsewhere,
    because the model keeps a tensor that it also returns, would no longer be divided.
Changes: with GAS > 1, such an output and no `engine.backward`, gradients become GAS times larger, with the same effects
    on clipping, SGD's steps and checkpoints as in dict_output_double_scaling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"


def separated(outputs: Any) -> Any:
    """`outputs`, with views in place of its tensors if a loss is one of several."""
    tensors = list(_tensors(outputs))
    return _views(outputs) if len(tensors) > 1 and any(tensor.numel() == 1 for tensor in tensors) else outputs


def _tensors(outputs: Any) -> Iterator[Any]:
    import torch

    if isinstance(outputs, torch.Tensor):
        if outputs.grad_fn is not None:
            yield outputs
    elif isinstance(outputs, (dict, list, tuple)):  # what DeepSpeed looks into
        for each in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from _tensors(each)


def _views(outputs: Any) -> Any:
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs if outputs.grad_fn is None or outputs.layout is not torch.strided else outputs.view_as(outputs)
    if isinstance(outputs, dict):
        for key, value in list(outputs.items()):
            outputs[key] = _views(value)
    elif isinstance(outputs, list):
        outputs[:] = [_views(each) for each in outputs]
    elif isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(_views(each) for each in outputs))
    elif type(outputs) is tuple:
        return tuple(_views(each) for each in outputs)
    return outputs


PATCH = Patch(
    title="loss.backward() + gradient accumulation, output with loss and logits: gradients divided twice",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3"},
    changes=(
        Edit(
            f"{_ENGINE}.forward",
            after="loss = self.module(*inputs, **kwargs)",
            # a pipeline stage's output goes to the next stage
            code="if self.gradient_accumulation_steps() > 1 and not self.pipeline_parallelism:\n"
            f"    from {__name__} import separated\n"
            "    loss = separated(loss)",
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8245": "related: direct backward passes unchanged (0.19.6)",
    },
    fixed_in=None,
    present=(Source(f"{_ENGINE}._backward_prologue_per_tensor", "return grad / self.gradient_accumulation_steps()"),),
    default=False,
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 4
_STEPS = 2


def reproduce(lab: Lab) -> str:
    models, reference = lab.models, lab.reference
    from dsfix.lab.outputs import LossAndOutput

    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = LossAndOutput(models.MLP())
    expected = reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
    model = LossAndOutput(models.MLP())
    twice = reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE / _MICRO_BATCHES)

    model = LossAndOutput(models.MLP())
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    if not hasattr(engine, "_backward_prologue_per_tensor"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} supports only engine.backward()")
    for inputs, targets in batches:
        engine(inputs.to(lab.device), targets.to(lab.device))["loss"].backward()
        engine.step()

    return reference.compare(
        lab.parameters(engine),
        expected.parameters,
        {f"those of gradients divided by {_MICRO_BATCHES**2}": twice.parameters},
        after=f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches",
    )
