"""After engine.set_train_batch_size in a running job, the next step silently uses too few micro-batches.

Why: whether a micro-batch is the last of its step is a question of the number of all micro-batches since the job began,
    modulo the new accumulation steps. Unless that number is a multiple of them at the change, the first step after it
    is made too early, of gradients that are divided by all of the new steps; every later one is shifted.
How: at the first micro-batch after such a change rank 0 warns once, and says what to do. Numbers stay: scripts may
    count on where the steps are.
Workaround: Scripts change it after a multiple of the new accumulation steps, reset `engine.micro_steps`, or set each
    boundary with `set_gradient_accumulation_boundary`. You can keep it; it causes no warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._warn_once import warn_once

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_SET = f"{_ENGINE}.set_train_batch_size"
_COUNTED = "return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0"


def tell_of_shift(engine: Any) -> None:
    """At the first micro-batch after a change; the script may have reset the count by now."""
    before, done = engine.__dict__.pop("_dsfix_steps_before"), engine.micro_steps
    steps = engine.gradient_accumulation_steps()
    if done % before or not done % steps:  # the change was within a step, or all is well
        return
    optimizer = " and engine.optimizer.gradient_accumulation_steps"
    stale = getattr(engine.optimizer, "gradient_accumulation_steps", steps) != steps
    ran(__name__)
    warn_once(
        __name__,
        f"engine.set_train_batch_size changed the accumulation to {steps} steps after {done} micro-batches, which is "
        f"not a multiple of {steps}. The next step is therefore made after {steps - done % steps} of its {steps} "
        "micro-batches, and all later ones are shifted. After the call, set engine.micro_steps to 0"
        f"{f'{optimizer} to {steps}' if stale else ''}",
    )


PATCH = Patch(
    title="engine.set_train_batch_size in a running job: the next step silently uses too few micro-batches",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _SET,
            before="self._config.gradient_accumulation_steps = new_gas",
            code="self.__dict__.setdefault('_dsfix_steps_before', self.gradient_accumulation_steps())",
        ),
        Edit(
            f"{_ENGINE}.is_gradient_accumulation_boundary",
            before=_COUNTED,
            code="if '_dsfix_steps_before' in self.__dict__:\n    tell_of_shift(self)",
            uses=(tell_of_shift,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1310": "introduced"},
    present=(Source(_SET, "self._config.train_batch_size = train_batch_size"),),
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    from .._messages import Messages

    torch = lab.torch
    warnings = Messages(logging.WARNING)
    logging.getLogger("dsfix").addHandler(warnings)

    def difference(lengths: Sequence[int], counts_anew: bool = False) -> float:
        """From plain PyTorch, relative. lengths: the micro-batches of each step."""
        batches = [lab.models.regression_batch(rank=0, step=step) for step in range(sum(lengths))]
        starts = [sum(lengths[:step]) for step in range(len(lengths))]
        steps = [batches[start : start + length] for start, length in zip(starts, lengths)]
        model = lab.models.MLP()
        right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE)
        size = len(batches[0][0])
        config = {
            "train_micro_batch_size_per_gpu": size,
            "gradient_accumulation_steps": lengths[0],
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        }
        model = lab.models.MLP()
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for step in steps:
            if engine.gradient_accumulation_steps() != len(step):
                engine.set_train_batch_size(size * len(step))
                if counts_anew:
                    engine.micro_steps = 0
            for inputs, targets in step:
                engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
                engine.step()
        return lab.reference.largest_difference(lab.parameters(engine), right.parameters).relative

    for lengths, counts_anew in (((1, 1, 2, 2), False), ((1, 1, 3, 3, 2), True)):
        assert difference(lengths, counts_anew) < 1e-3, f"{lengths}: not the parameters of plain PyTorch"
        assert not any("set_train_batch_size" in line for line in warnings.lines), "a warning where all is well"
    assert difference((1, 1, 3, 3)) > 1e-2, "steps of 3 micro-batches after two of 1 match plain PyTorch"
    if not any("after 1 of its 3 micro-batches" in line for line in warnings.lines):
        raise BugPresent("after two steps of 1 micro-batch the first of 3 is made after 1 of them, and nothing says so")
    return "a warning says that the step is made after 1 of its 3 micro-batches; in scripts that avoid it there is none"
