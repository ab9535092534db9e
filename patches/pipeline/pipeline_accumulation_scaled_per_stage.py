"""Pipeline parallelism: every stage before the last divides its gradients by the number of micro-batches again.

Why: since 0.18.3 a hook on the module's outputs divides their gradient by the gradient accumulation steps (GAS). Each
    stage of a pipeline has such a hook: the last stage divides and sends the divided gradient to the previous stage,
    which divides it again. The stage n before the last trains with gradients GASⁿ times too small. Nothing fails.
    Before 0.18.3: pipeline_accumulation_unscaled.
How: the hook divides on the last stage only.
Changes: gradients of the earlier stages become larger by these factors, and with them the norm and clipping. In a
    checkpoint written without the patch the early stages are undertrained (with SGD; Adam makes up for most of it), and
    their Adam moments are too small: warm up the learning rate again after resuming.
Workaround: Scripts set `engine._scale_wrt_gas = False` on all stages but the last, or override the hook to do so.
    You can keep it. Code that multiplies gradients or learning rates of earlier stages by powers of GAS must be
    removed, as with 0.19.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_HOOK = "deepspeed.runtime.engine:DeepSpeedEngine._backward_prologue_per_tensor"

PATCH = Patch(
    title="Pipeline parallelism: every stage before the last divides gradients by the number of micro-batches again",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3,<0.19.3"},
    changes=(
        Edit(
            _HOOK,
            before="return grad / self.gradient_accumulation_steps()",
            code="if self.pipeline_parallelism and not self.is_last_stage():\n    return grad",
            effect="gradients were divided by the number of micro-batches only once",
            when="self.pipeline_parallelism and not self.is_last_stage() and self.gradient_accumulation_steps() > 1",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8152": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8154": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    fixed=(
        Source(
            "deepspeed.runtime.pipe.engine:PipelineEngine._backward_prologue_per_tensor",
            "super()._backward_prologue_per_tensor(grad)",
        ),
    ),
    config=lambda job: job.pipeline is True and job.accumulates(),
    ranks=2,
    device="cpu",
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch  # before pipeline imports it
    from . import _pipeline as pipeline

    parameters = pipeline.train(lab, {}, _LEARNING_RATE)
    right = pipeline.of_stage(pipeline.expected([_LEARNING_RATE] * 2), parameters)
    again = pipeline.expected([_LEARNING_RATE / pipeline.MICRO_BATCHES, _LEARNING_RATE])
    return lab.reference.compare(
        parameters,
        right,
        {f"those of stage 0's gradients divided by {pipeline.MICRO_BATCHES**2}": pipeline.of_stage(again, parameters)},
        after=f"after {pipeline.STEPS} steps of {pipeline.MICRO_BATCHES} micro-batches",
        what="the parameters of both stages",
    )
