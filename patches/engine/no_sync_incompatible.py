"""accelerate's `accumulate` and `no_sync` with ZeRO-2 or ZeRO-3: AssertionError, no_sync is incompatible.

Why: 0.16.0 gave the engine a `no_sync`, which rejects ZeRO-2 and ZeRO-3: with partitioned gradients every micro-batch
    needs a reduction. accelerate, and with it transformers through 4.47.0, enters the `no_sync` of any model that has
    one, for each micro-batch but the last, and calls `engine.step()` in it. Through 0.15.4 there was no such method,
    and the same scripts ran.
How: with ZeRO-2 and ZeRO-3 and a `gradient_accumulation_steps` above 1, the `no_sync` that accelerate enters does
    nothing: each micro-batch is reduced and added, which gives the same gradient. That needs an `engine.step()` after
    each micro-batch (accelerate through 1.7) or a boundary set by hand (1.8, 1.9); otherwise the AssertionError is
    raised at the end of the block. A script's own `no_sync` still fails; ZeRO-0 and ZeRO-1 are unchanged.
Workaround: Scripts catch the AssertionError and continue without `no_sync`. You can keep it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
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
    """Whether a function of accelerate has entered the context manager whose generator calls this."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    if frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "accelerate":
        took_effect(__name__, "accelerate's no_sync did nothing (unpatched: AssertionError)")
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "accelerate"


PATCH = Patch(
    title="accelerate's accumulate with ZeRO-2/3: AssertionError, no_sync is incompatible with gradient partitioning",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.0"},
    changes=(
        Edit(
            f"{_ENGINE}.no_sync",
            before="assert not self.zero_optimization_partition_gradients(), "
            f"f'{_MESSAGE} {{self.zero_optimization_stage()}}'",
            code=_NOTHING,
        ),
    ),
    symptom=_MESSAGE,
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6793": "reported",
        "https://github.com/huggingface/accelerate/issues/3481": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6675": "introduced in 0.16.0, on purpose",
        "https://github.com/huggingface/transformers/pull/35157": "related: fixed on transformers' side",
    },
    present=(
        Source(
            f"{_ENGINE}.zero_optimization_partition_gradients",
            "return self.zero_optimization_stage() >= ZeroStageEnum.gradients",
        ),
        Source(
            f"{_ENGINE}.no_sync",
            "self.inside_no_sync_ctxt = True\ntry:\n    yield\nfinally:\n    self.inside_no_sync_ctxt = False",
        ),
    ),
)

_LEARNING_RATE = 0.1
_MICRO_BATCHES = 3
_STEPS = 2

# as in Accelerator through 1.9
_ACCELERATE = """
@contextmanager
def no_sync(model):
    with getattr(model, "no_sync", nullcontext)():
        yield
"""


def reproduce(lab: Lab) -> str:
    torch, models, reference = lab.torch, lab.models, lab.reference
    accelerate: dict[str, Any] = {
        "__name__": "accelerate",
        "contextmanager": contextmanager,
        "nullcontext": nullcontext,
    }
    exec(_ACCELERATE, accelerate)
    no_sync = accelerate["no_sync"]

    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    steps = [batches[first : first + _MICRO_BATCHES] for first in range(0, len(batches), _MICRO_BATCHES)]
    model = models.MLP()
    expected = reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)

    reports = []
    for stage in (2, 3):
        model = models.MLP()
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
        after = f"ZeRO-{stage}: after {_STEPS} steps of {_MICRO_BATCHES} micro-batches"
        reports.append(reference.compare(lab.parameters(engine), expected.parameters, after=after))
    return "; ".join(reports)
