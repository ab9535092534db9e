"""A pipeline with `wall_clock_breakdown` and no `steps_per_print`: TypeError in _exec_optimizer_step.

Why: 0.15.2 made None the default of `steps_per_print`, which turns progress reports off. With `wall_clock_breakdown`,
    which the flops profiler enables too, the pipeline's optimizer step computes with it: unsupported operand type(s)
    for %: 'int' and 'NoneType'. Upstream's fix in 0.16.5 covers train_batch only: pipeline_steps_per_print.
How: without a number, the optimizer step logs no times.
Workaround: Scripts set `steps_per_print` to a number, a large one to print nothing. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.pipe.engine:PipelineEngine._exec_optimizer_step"
_DUE = "self.global_steps % self.steps_per_print() == 0"
_GUARDED = f"self.steps_per_print() is not None and {_DUE}"
_MESSAGE = "unsupported operand type(s) for %: 'int' and 'NoneType'"


def _meets(job: Job) -> bool:
    timed = job.get("wall_clock_breakdown") is True or job.get("flops_profiler", "enabled") is True
    return job.pipeline is True and timed and job.get("steps_per_print") is None


PATCH = Patch(
    title="Pipeline parallelism with wall_clock_breakdown, without steps_per_print: TypeError in _exec_optimizer_step",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.2"},
    changes=(
        Edit(
            _STEP,
            replace=_DUE,
            code=_GUARDED,
            count=2,
            effect="nothing was printed without steps_per_print (unpatched: TypeError)",
            when="self.steps_per_print() is None",
        ),
    ),
    symptom=r"in _exec_optimizer_step\n(.*\n){1,3}TypeError: unsupported operand type\(s\) for %: 'int' and 'NoneType'",
    upstream={
        "https://github.com/EleutherAI/gpt-neox/issues/1306": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6602": "introduced in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/8430": "related: open, does the same",
    },
    present=(Source("deepspeed.runtime.constants", "STEPS_PER_PRINT_DEFAULT = None"),),
    fixed=(Source(_STEP, _GUARDED),),
    config=_meets,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch  # before pipeline imports it
    from . import _pipeline as pipeline

    config = {"wall_clock_breakdown": True}
    try:
        parameters = pipeline.train(lab, config, learning_rate=0.1)
    except TypeError as error:
        if str(error) == _MESSAGE and traceback.extract_tb(error.__traceback__)[-1].name == "_exec_optimizer_step":
            raise BugPresent(f"in _exec_optimizer_step: {error}") from error
        raise
    return lab.reference.compare(
        parameters, pipeline.expected([0.1]), after=f"after {pipeline.STEPS} steps of a pipeline with timers"
    )
