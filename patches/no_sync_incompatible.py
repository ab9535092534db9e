"""accelerate's `accumulate` and `no_sync` with ZeRO-2 or ZeRO-3: AssertionError, no_sync is incompatible.

Why: 0.16.0 gave the engine a `no_sync`, which refuses ZeRO-2 and ZeRO-3: with partitioned gradients no micro-batch goes
    without a reduction. accelerate, and with it transformers up to 4.47.0, enters the `no_sync` of any model that has
    one, for each micro-batch but the last, and calls `engine.step()` in it. Up to 0.15.4 there was none to enter, and
    the same scripts ran.
How: with ZeRO-2 and ZeRO-3 and a `gradient_accumulation_steps` above 1, `no_sync` changes nothing: each micro-batch is
    reduced to its partition and added there, which gives the gradient that adding first and reducing once would give.
    Micro-batches are counted right only where `engine.step()` follows each of them. So a block in which it was not
    called ends with the AssertionError that upstream raises at its beginning. ZeRO-0 and ZeRO-1 stay as they are: there
    `no_sync` skips the reduction, and `engine.step()` in it is refused.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/6793, https://github.com/huggingface/accelerate/issues/3481,
    brought by https://github.com/deepspeedai/DeepSpeed/pull/6675 (0.16.0), on purpose, and not changed since.
    transformers has ended its part with https://github.com/huggingface/transformers/pull/35157.
Retire: when https://github.com/huggingface/accelerate/issues/3481 is closed and no accelerate before that is in use.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MESSAGE = "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage"

_NOTHING = """
if self.zero_optimization_partition_gradients() and self.gradient_accumulation_steps() > 1:
    micro_steps = self.micro_steps
    yield
    if self.micro_steps != micro_steps:
        return
"""

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


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

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
                with nullcontext() if last else getattr(engine, "no_sync", nullcontext)():  # as accelerate does
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
