"""Pipeline parallelism: "Direct calls to tensor.backward() are not supported", or "Loss scaling is required".

Why: since 0.18.3 the engine rejects a backward pass that does not go through `engine.backward` where ZeRO is off, or
    where the loss has to be scaled (fp16). All stages of a pipeline but the last run exactly such a pass: they continue
    from the gradient that the next stage has sent. They raise, and the last stage waits for them.
How: while such a stage runs its backward pass, the engine treats the pass as its own (ZeRO off), or as one whose loss
    has been scaled (ZeRO-1), which the last stage did. ZeRO's work at the end of each backward pass is done as before;
    upstream's fix skips it.
Workaround: Scripts wrap the backward pass, in `PipelineEngine._INSTRUCTION_MAP`, to set
    `engine._running_engine_backward` for its duration. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_BACKWARD = "deepspeed.runtime.pipe.engine:PipelineEngine._exec_backward_pass"
_PASS = "if isinstance(outputs, tuple):\n    ...\nelse:\n    ..."
_MESSAGE = "Direct calls to tensor.backward() are not supported in this configuration"

_EXPECTED = """
self._running_engine_backward = not self._support_torch_style_backward
self._manual_backward_expected = True
"""


def _meets(job: Job) -> bool:
    # bf16 without ZeRO has a ZeRO optimizer in a pipeline
    without_zero = job.stage == 0 and not job.may_be("bf16")
    return job.pipeline is True and (without_zero or job.may_be("fp16"))


PATCH = Patch(
    title="Pipeline parallelism: all stages except the last fail, direct calls to tensor.backward() are not supported",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.3,<0.18.5"},
    changes=(
        Edit(
            _BACKWARD,
            before=_PASS,
            code=_EXPECTED,
            effect="the backward pass counted as one of the engine's (unpatched: RuntimeError)",
            when="not self._support_torch_style_backward"
            " or (self.fp16_enabled() and getattr(self.optimizer, 'dynamic_loss_scale', False))",
        ),
        Edit(_BACKWARD, after=_PASS, code="self._running_engine_backward = False"),
    ),
    symptom=r"in _exec_backward_pass\n[\s\S]*RuntimeError: "
    r"(Direct calls to tensor\.backward\(\) are not supported|Loss scaling is required for this configuration)",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7787": "fixed in 0.18.5",
    },
    fixed_in="0.18.5",
    present=(
        Source(f"{_ENGINE}._backward_prologue", "not self._support_torch_style_backward"),
        Source(_BACKWARD, "torch.autograd.backward(tensors=(outputs,), grad_tensors=(grad_tensors,))"),
    ),
    fixed=(Source(_BACKWARD, "self._running_engine_backward = True"),),
    config=_meets,
    ranks=2,
    device="cpu",
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch  # before pipeline imports it
    from . import _pipeline as pipeline

    try:
        parameters = pipeline.train(lab, {}, _LEARNING_RATE)
    except RuntimeError as error:
        if str(error).startswith(_MESSAGE):
            raise BugPresent(f"on stage {lab.rank}: {_MESSAGE}") from error
        raise
    right = pipeline.of_stage(pipeline.expected([_LEARNING_RATE] * 2), parameters)
    return lab.reference.compare(
        parameters, right, after=f"after {pipeline.STEPS} steps without ZeRO", what="the parameters of both stages"
    )
