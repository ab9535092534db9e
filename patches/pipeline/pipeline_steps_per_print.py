"""PipelineEngine.train_batch() without `steps_per_print`: TypeError, unsupported operand for %: 'int' and 'NoneType'.

Why: 0.15.2 made None the default of `steps_per_print`, which turns progress reports off. A pipeline's `train_batch`
    still computes with it after each step.
How: without a number, `train_batch` prints nothing, as in upstream's fix. With `wall_clock_breakdown` the same happens
    elsewhere: pipeline_steps_per_print_timers.
Workaround: Scripts set `steps_per_print` to a number, a large one to print nothing. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_TRAIN_BATCH = "deepspeed.runtime.pipe.engine:PipelineEngine.train_batch"
_DUE = "self.global_steps % self.steps_per_print() == 0"
_GUARDED = f"self.steps_per_print() is not None and {_DUE}"
_MESSAGE = "unsupported operand type(s) for %: 'int' and 'NoneType'"

PATCH = Patch(
    title="Pipeline parallelism without steps_per_print: TypeError in train_batch",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.2,<0.16.5"},
    changes=(
        Edit(
            _TRAIN_BATCH,
            replace=_DUE,
            code=_GUARDED,
            count=2,
            effect="nothing was printed without steps_per_print (unpatched: TypeError)",
            when="self.steps_per_print() is None",
        ),
    ),
    symptom=r"in train_batch\n(.*\n){1,3}TypeError: unsupported operand type\(s\) for %: 'int' and 'NoneType'",
    upstream={
        "https://github.com/EleutherAI/gpt-neox/issues/1306": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6602": "introduced in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7104": "fixed in 0.16.5",
    },
    fixed_in="0.16.5",
    present=(Source("deepspeed.runtime.constants", "STEPS_PER_PRINT_DEFAULT = None"),),
    fixed=(Source(_TRAIN_BATCH, _GUARDED),),
    config=lambda job: job.pipeline is True and job.get("steps_per_print") is None,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch  # before pipeline imports it
    from . import _pipeline as pipeline

    try:
        parameters = pipeline.train(lab, {}, learning_rate=0.1)
    except TypeError as error:
        if str(error) == _MESSAGE and traceback.extract_tb(error.__traceback__)[-1].name == "train_batch":
            raise BugPresent(f"in train_batch: {error}") from error
        raise
    return lab.reference.compare(
        parameters, pipeline.expected([0.1]), after=f"after {pipeline.STEPS} steps of a pipeline"
    )
