"""Pipeline parallelism: the gradients of all stages but the last are divided by the number of micro-batches again.

Why: since 0.18.3 a hook on what the model returns divides its gradient by the gradient accumulation steps (GAS). In a
    pipeline each stage has such a hook: the last one divides, sends the divided gradient to the stage before, and that
    divides it again. The stage n before the last learns from gradients GASⁿ times too small. Nothing fails.
How: the hook divides on the last stage only.
Changes: with several micro-batches and at least two stages, gradients of the earlier stages become larger by these
    factors, and with them the gradient norm: `gradient_clipping` acts on another number. A checkpoint written without
    the patch holds parameters of which the early stages have learned too little (with SGD; Adam makes up for most of
    it), and Adam's moments that are too small there: warm the learning rate up anew after resuming.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/8152, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/7665 (0.18.3), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/8154 (0.19.3). Before 0.18.3: pipeline_accumulation_unscaled.
Retire: when DeepSpeed 0.19.2 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_HOOK = "deepspeed.runtime.engine:DeepSpeedEngine._backward_prologue_per_tensor"

PATCH = Patch(
    title="pipeline parallelism: gradients of all stages but the last divided by the number of micro-batches again",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3,<0.19.3"},
    changes=(
        Edit(
            _HOOK,
            before="return grad / self.gradient_accumulation_steps()",
            code="if self.pipeline_parallelism and not self.is_last_stage():\n    return grad",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/8152",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665",
        "https://github.com/deepspeedai/DeepSpeed/pull/8154",
    ),
    fixed_in="0.19.3",
    fixed=(
        Source(
            "deepspeed.runtime.pipe.engine:PipelineEngine._backward_prologue_per_tensor",
            "super()._backward_prologue_per_tensor(grad)",
        ),
    ),
    ranks=2,
    device="cpu",
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    assert lab.torch is not None  # with its device, before others import it
    from dsfix.lab import pipeline
    from dsfix.lab.reference import largest_difference

    parameters = pipeline.train(lab, {}, _LEARNING_RATE)
    right = pipeline.of_stage(pipeline.expected([_LEARNING_RATE] * 2), parameters)
    again = pipeline.expected([_LEARNING_RATE / pipeline.MICRO_BATCHES, _LEARNING_RATE])
    done = f"after {pipeline.STEPS} steps of {pipeline.MICRO_BATCHES} micro-batches"
    difference = largest_difference(parameters, right)
    wrong = largest_difference(parameters, pipeline.of_stage(again, parameters))
    if wrong.relative < 1e-4 < difference.relative:
        raise BugPresent(f"{done} stage 0's gradients were divided by {pipeline.MICRO_BATCHES**2}: {difference}")
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters of both stages are plain PyTorch's within {difference.relative:.1e}"
