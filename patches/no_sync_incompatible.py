"""accelerate's `accumulate` and `no_sync` with ZeRO-2 or ZeRO-3: AssertionError, no_sync is incompatible.

Why: 0.16.0 gave the engine a `no_sync`, which refuses ZeRO-2 and ZeRO-3: with partitioned gradients no micro-batch goes
    without a reduction. accelerate, and with it transformers up to 4.47.0, enters the `no_sync` of any model that has
    one, for each micro-batch but the last, and calls `engine.step()` in it. Up to 0.15.4 there was none to enter, and
    the same scripts ran.
How: with ZeRO-2 and ZeRO-3 and a `gradient_accumulation_steps` above 1, the `no_sync` that accelerate enters changes
    nothing: each micro-batch is reduced to its partition and added there, which gives the gradient that adding first
    and reducing once would give. Micro-batches are counted right where `engine.step()` follows each of them, as in
    accelerate up to 1.7, or the boundary is set by hand, as in 1.8 and 1.9. A block with neither ends with the
    AssertionError that upstream raises at its beginning. A script that enters the engine's `no_sync` itself gets it at
    the beginning as ever, for it may catch it and go on without. ZeRO-0 and ZeRO-1 stay as they are: there `no_sync`
    skips the reduction, and `engine.step()` in it is refused.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/6793, https://github.com/huggingface/accelerate/issues/3481,
    brought by https://github.com/deepspeedai/DeepSpeed/pull/6675 (0.16.0), on purpose, and not changed since.
    transformers has ended its part with https://github.com/huggingface/transformers/pull/35157.
Retire: when https://github.com/huggingface/accelerate/issues/3481 is closed and no accelerate before that is in use.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MESSAGE = "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage"

_NOTHING = f"""
if self.zero_optimization_partition_gradients() and self.gradient_accumulation_steps() > 1:
    from {__name__} import is_entered_by_accelerate
    if is_entered_by_accelerate():
        micro_steps = self.micro_steps
        yield
        if self.micro_steps != micro_steps or self._is_gradient_accumulation_boundary is False:
            return
"""


def is_entered_by_accelerate() -> bool:
    """Whether the context manager whose generator calls this is entered by a function of accelerate's."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "accelerate"


PATCH = Patch(
    title="accelerate's accumulate with ZeRO-2/3: AssertionError, no_sync is incompatible with gradient partitioning",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.0"},
    changes=(
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.no_sync",
            before="assert not self.zero_optimization_partition_gradients(), "
            f"f'{_MESSAGE} {{self.zero_optimization_stage()}}'",
            code=_NOTHING,
        ),
    ),
    symptom=_MESSAGE,
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/6793",
        "https://github.com/huggingface/accelerate/issues/3481",
        "https://github.com/huggingface/transformers/pull/35157",
        "https://github.com/deepspeedai/DeepSpeed/pull/6675",
    ),
    fixed_in=None,
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 3
_STEPS = 2

# of Accelerator, up to 1.9
_ACCELERATE = """
@contextmanager
def no_sync(model):
    with getattr(model, "no_sync", nullcontext)():
        yield
"""


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    accelerate: dict[str, Any] = {
        "__name__": "accelerate",
        "contextmanager": contextmanager,
        "nullcontext": nullcontext,
    }
    exec(_ACCELERATE, accelerate)
    no_sync = accelerate["no_sync"]

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = MLP()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)

    done = f"after {_STEPS} steps of {_MICRO_BATCHES} micro-batches"
    relative = 0.0
    for stage in (2, 3):
        model = MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "gradient_accumulation_steps": _MICRO_BATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for number, (inputs, targets) in enumerate(batches, 1):
            last = number % _MICRO_BATCHES == 0
            try:
                with nullcontext() if last else no_sync(engine):
                    loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
                    engine.backward(loss)
                    engine.step()
            except AssertionError as error:
                if str(error).startswith(_MESSAGE):
                    raise BugPresent(str(error)) from error
                raise
        difference = largest_difference(lab.parameters(engine), expected.parameters)
        assert difference.relative < 1e-4, f"ZeRO-{stage}, {done} {difference}"
        relative = max(relative, difference.relative)
    return f"{done}, with ZeRO-2 and ZeRO-3, the parameters are plain PyTorch's within {relative:.1e}"
