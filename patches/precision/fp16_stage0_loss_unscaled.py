"""fp16 without ZeRO: gradients are divided by the loss scale although the loss was not multiplied by it.

Why: without ZeRO an fp16 engine wraps its optimizer in FP16_Optimizer or FP16_UnfusedOptimizer, whose `backward`
    multiplies the loss by the loss scale and whose `step` divides the gradients by it. Since 0.18.3 `engine.backward`
    no longer calls that `backward`, and scales the loss for ZeRO only. Gradients become 65536 times too small, and
    smaller still as the scale grows, because nothing overflows: SGD and Lion stand still or nearly so, Adam's updates
    are damped by its epsilon, clipping never clips, and what fp16 cannot represent is lost. Nothing fails.
How: `engine.backward` multiplies the loss, in fp32, by the wrapper's loss scale, as through 0.18.2, unless the script
    has done so. That is seen from the last operations of the loss: multiplications and divisions by a number, and sums.
Changes: gradients and their norm become larger by the loss scale, as through 0.18.2; a learning rate tuned without the
    patch may be wrong. In a checkpoint written without it Adam's moments are too small, and the loss scale may be too
    large at first: load only the weights (`load_module_only=True`).
Workaround: The script multiplies the loss by `engine.optimizer.loss_scale`, or by that over the accumulation steps: the
    loss is not changed, with a warning. So is a loss that is multiplied by what may be the scale and another number,
    1024 or more and up to 64 times less than the scale. A factor is judged when it first occurs. A multiplication that
    is not detected, such as one in a compiled function or in a gradient's hook, must be removed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

from .._shared import saved

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.engine:DeepSpeedEngine.backward"
_SCALE = "if isinstance(self.optimizer, ZeROOptimizer):\n    ...\nelif self.torch_autocast_z0_gradscaler:\n    ..."

_FACTORS = "_dsfix_factors"  # of an engine: factors of its losses, and whether each was the loss scale when first met
_ON_DEVICE = "_dsfix_scaled_on_device"  # of an engine: whether such factors on the device were, when first met
_NODES, _KEPT = 32, 256
_THROUGH = frozenset(
    f"{name}Backward0"
    for name in (
        *("Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Clone", "ToCopy"),
        *("View", "ReshapeAlias", "Squeeze", "Unsqueeze"),
    )
)


def scaled_by_script(engine: Any, loss: Any) -> bool:
    """Whether one of the loss's factors is the loss scale, as far as its last operations show."""
    scale, steps = engine.optimizer.loss_scale, engine.gradient_accumulation_steps()
    known = vars(engine).setdefault(_FACTORS, {})
    on_device = vars(engine).get(_ON_DEVICE)
    scaled = False
    for number, product in _factors(loss):
        if number.is_cpu:
            factor = float(number) if product else 1 / (float(number) or math.inf)
            if factor not in known and len(known) < _KEPT:
                known[factor] = _may_be(factor, scale, steps)
            scaled = scaled or known.get(factor, False)
        elif product and number.is_floating_point():
            if on_device is None:  # only once: reading a number waits for the device
                setattr(engine, _ON_DEVICE, _may_be(float(number), scale, steps) or vars(engine).get(_ON_DEVICE, False))
            scaled = scaled or getattr(engine, _ON_DEVICE)
    if scaled:
        from dsfix.log import warn_repeatedly

        warn_repeatedly(
            __name__,
            "fp16_stage0_loss_unscaled: the script seems to multiply the loss by the loss scale, so the patch does "
            "not. Pass the unscaled loss to engine.backward(). If the factor is something else, choose a different "
            "fp16.initial_scale_power or fp16.loss_scale",
        )
    if not scaled and scale != 1:
        took_effect(
            __name__,
            "the loss was multiplied by the loss scale, %s (unpatched: only gradients are divided by it)",
            scale,
        )
    return scaled


def _may_be(factor: float, scale: float, steps: int) -> bool:
    """Whether a factor is the loss scale, or it with another number."""
    if scale == 1:
        return False
    ratio = scale / factor if factor else math.inf
    less = round(ratio) if ratio < 65 else 0
    return math.isclose(ratio, less, rel_tol=1e-5) and (less in (1, steps) or (less > 1 and factor >= 1024))


def _factors(loss: Any) -> Iterator[tuple[Any, bool]]:
    """The numbers in the loss's last operations, and whether it was multiplied, not divided."""
    nodes = [loss.grad_fn]
    seen: set[Any] = set()
    while nodes and len(seen) < _NODES:
        node = nodes.pop()
        if node is None or node in seen or node.name() not in _THROUGH:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        product = node.name() == "MulBackward0"
        if product or node.name() == "DivBackward0":
            (first, _), (second, _) = node.next_functions
            name = "other" if second is None else "self" if product and first is None else ""
            number = saved(node, name) if name else None
            if number is not None:
                yield number, product


PATCH = Patch(
    title="fp16 without ZeRO: gradients are divided by the loss scale, but the loss was not multiplied by it",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3"},
    changes=(
        Edit(
            _BACKWARD,
            before=_SCALE,
            # in fp32: in fp16 the product is infinite
            code="if (\n    self.fp16_enabled()\n"
            "    and isinstance(self.optimizer, (FP16_Optimizer, FP16_UnfusedOptimizer))\n"
            "    and not scaled_by_script(self, loss)\n):\n"
            "    loss = loss.float() * self.optimizer.loss_scale",
            uses=(scaled_by_script,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8393": "proposed fix",
    },
    present=(Source("deepspeed.runtime.engine:DeepSpeedEngine.scale", f"scaled_loss = loss\n{_SCALE}"),),
    fixed=(Source(_BACKWARD, "self.fp16_enabled()"),),
    config=lambda job: job.stage == 0 and job.may_be("fp16") and job.get("fp16", "loss_scale") != 1,
)

_LEARNING_RATE = 0.1
_STEPS = 3
_LOSS_SCALE = 16


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    models, reference = lab.models, lab.reference
    from .. import _half as half

    steps = [[models.regression_batch(rank=0, step=step)] for step in range(_STEPS)]

    def plain(learning_rate: float) -> dict[str, Any]:
        return half.train(models.MLP(), torch.float16, steps, functools.partial(torch.optim.SGD, lr=learning_rate))

    expected, divided = plain(_LEARNING_RATE), plain(_LEARNING_RATE / _LOSS_SCALE)

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "initial_scale_power": _LOSS_SCALE.bit_length() - 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for [(inputs, targets)] in steps:
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()

    return reference.compare(
        lab.parameters(engine),
        expected,
        {f"those of gradients divided by the loss scale of {_LOSS_SCALE}": divided},
        within=0.001,
        after=f"after {_STEPS} steps",
    )
