"""Pipeline parallelism: gradients are as many times too large as there are micro-batches in a step.

Why: since 0.16.0 `engine.backward` divides the loss by the gradient accumulation steps (GAS) only where it is to reduce
    the gradients itself. A pipeline reduces them on its own, so its loss is not divided at all. The same happens with
    the 1-bit optimizers once they have switched that reduction off, after `freeze_step`. Nothing fails.
How: where the reduction is switched off and no `no_sync` is in force, `engine.backward` divides the loss, as up to
    0.15.4. `scale_wrt_gas=False` is respected. Inside `no_sync` upstream leaves the loss as it is on purpose.
Changes: gradients of a pipeline with several micro-batches become GAS times smaller. SGD's learning rate, or a
    `gradient_clipping`, that was tuned on these releases is too small by that factor then. A checkpoint written without
    the patch holds right parameters of a job with too large gradients; Adam's moments in it are GAS and GAS² times too
    large, so that steps after resuming are too small until these have decayed.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/6675 (0.16.0), gone with
    https://github.com/deepspeedai/DeepSpeed/pull/7665 (0.18.3), which divides elsewhere and brought
    pipeline_accumulation_scaled_per_stage. Asked about in https://github.com/deepspeedai/DeepSpeed/issues/7773.
Retire: when DeepSpeed 0.18.2 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"

_SCALE = """
if not self.enable_backward_allreduce and not self.inside_no_sync_ctxt and self.gradient_accumulation_steps() > 1:
    if scale_wrt_gas if self.scale_wrt_gas is None else self.scale_wrt_gas:
        loss = self._scale_loss_by_gas(loss.float())
"""

PATCH = Patch(
    title="pipeline parallelism: gradients too large by the number of micro-batches",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.0,<0.18.3"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            # the one statement that is there before and after 0.16.5, which moved what follows to other methods
            after="assert self.optimizer is not None and not isinstance(self.optimizer, DummyOptim), "
            "'must provide optimizer during init in order to use backward'",
            code=_SCALE,
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/7773",
        "https://github.com/deepspeedai/DeepSpeed/pull/6675",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665",
    ),
    fixed_in="0.18.3",
    present=(Source(f"{_ENGINE}.__init__", "self.inside_no_sync_ctxt = False"),),
    fixed=(Source(f"{_ENGINE}._backward_prologue_per_tensor", "grad / self.gradient_accumulation_steps()"),),
    ranks=2,
    device="cpu",
)

_LEARNING_RATE = 0.02


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    assert lab.torch is not None  # with its device, before others import it
    from dsfix.lab import pipeline
    from dsfix.lab.reference import largest_difference

    parameters = pipeline.train(lab, {}, _LEARNING_RATE)
    right = pipeline.of_stage(pipeline.expected([_LEARNING_RATE] * 2), parameters)
    unscaled = pipeline.of_stage(pipeline.expected([_LEARNING_RATE * pipeline.MICRO_BATCHES] * 2), parameters)
    done = f"after {pipeline.STEPS} steps of {pipeline.MICRO_BATCHES} micro-batches"
    difference = largest_difference(parameters, right)
    if largest_difference(parameters, unscaled).relative < 1e-4 < difference.relative:
        raise BugPresent(f"{done} gradients were {pipeline.MICRO_BATCHES} times too large: {difference}")
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters of both stages are plain PyTorch's within {difference.relative:.1e}"
