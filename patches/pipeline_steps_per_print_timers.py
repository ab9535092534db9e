"""A pipeline with `wall_clock_breakdown` and no `steps_per_print`: TypeError in _exec_optimizer_step.

Why: 0.15.2 made None the default of `steps_per_print`, and the engine prints no progress then. With
    `wall_clock_breakdown`, which the flops profiler switches on too, the pipeline's optimizer step computes with it:
    unsupported operand type(s) for %: 'int' and 'NoneType'. Upstream has cured train_batch only, in 0.16.5, for which
    see pipeline_steps_per_print.
How: where there is no number, the optimizer step logs no times.
Upstream: https://github.com/EleutherAI/gpt-neox/issues/1306, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/6602 (0.15.2);
    https://github.com/deepspeedai/DeepSpeed/pull/8430 is open and does the same.
Retire: https://github.com/deepspeedai/DeepSpeed/pull/8430
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.pipe.engine:PipelineEngine._exec_optimizer_step"
_DUE = "self.global_steps % self.steps_per_print() == 0"
_GUARDED = f"self.steps_per_print() is not None and {_DUE}"
_MESSAGE = "unsupported operand type(s) for %: 'int' and 'NoneType'"

PATCH = Patch(
    title="pipeline parallelism with wall_clock_breakdown, without steps_per_print: TypeError in _exec_optimizer_step",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.2"},
    changes=(Edit(_STEP, replace=_DUE, code=_GUARDED, count=2),),
    symptom=r"in _exec_optimizer_step\n(.*\n){1,3}TypeError: unsupported operand type\(s\) for %: 'int' and 'NoneType'",
    upstream=(
        "https://github.com/EleutherAI/gpt-neox/issues/1306",
        "https://github.com/deepspeedai/DeepSpeed/pull/6602",
        "https://github.com/deepspeedai/DeepSpeed/pull/8430",
    ),
    fixed_in=None,
    present=(Source("deepspeed.runtime.constants", "STEPS_PER_PRINT_DEFAULT = None"),),
    fixed=(Source(_STEP, _GUARDED),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    assert lab.torch is not None  # with its device, before others import it
    from dsfix.lab import pipeline
    from dsfix.lab.reference import largest_difference

    config = {"wall_clock_breakdown": True}
    try:
        parameters = pipeline.train(lab, config, learning_rate=0.1)
    except TypeError as error:
        if str(error) == _MESSAGE and traceback.extract_tb(error.__traceback__)[-1].name == "_exec_optimizer_step":
            raise BugPresent(f"in _exec_optimizer_step: {error}") from error
        raise
    difference = largest_difference(parameters, pipeline.expected([0.1]))
    done = f"after {pipeline.STEPS} steps of a pipeline with timers"
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
