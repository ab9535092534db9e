"""Pipeline parallelism: gradients are too large by a factor of the number of micro-batches in a step.

Why: since 0.16.0 `engine.backward` divides the loss by the gradient accumulation steps (GAS) only when it is to reduce
    the gradients itself. A pipeline reduces them on its own, so its loss is not divided at all. The same happens with
    the 1-bit optimizers once they have switched that reduction off, after `freeze_step`. Nothing fails. 0.18.3 divides
    elsewhere: pipeline_accumulation_scaled_per_stage.
How: where the reduction is off and `no_sync` is not active, `engine.backward` divides the loss, as through 0.15.4.
    `scale_wrt_gas=False` is respected. Inside `no_sync` upstream leaves the loss undivided on purpose.
Changes: gradients of a pipeline with several micro-batches become GAS times smaller; an SGD learning rate or a
    `gradient_clipping` tuned on these releases is too small by that factor. In a checkpoint written without the patch
    Adam's moments are too large, so steps after resuming are too small until these have decayed.
Workaround: Scripts divide the loss by GAS in the pipeline's `loss_fn`. You can keep it with `engine.scale_wrt_gas =
    False` beside it; otherwise it must be removed, as with 0.18.3: such a loss looks like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"

_SCALE = """
if not self.enable_backward_allreduce and not self.inside_no_sync_ctxt and self.gradient_accumulation_steps() > 1:
    if scale_wrt_gas if self.scale_wrt_gas is None else self.scale_wrt_gas:
        loss = self._scale_loss_by_gas(loss.float())
"""

PATCH = Patch(
    title="Pipeline parallelism: gradients are too large by a factor of the number of micro-batches",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.0,<0.18.3"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            # the one statement that exists before and after 0.16.5, which moved what follows to other methods
            after="assert self.optimizer is not None and not isinstance(self.optimizer, DummyOptim), "
            "'must provide optimizer during init in order to use backward'",
            code=_SCALE,
            effect="the loss was divided by the number of micro-batches (unpatched: not divided)",
            when="not self.enable_backward_allreduce and not self.inside_no_sync_ctxt"
            " and self.gradient_accumulation_steps() > 1"
            " and (scale_wrt_gas if self.scale_wrt_gas is None else self.scale_wrt_gas)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7773": "related: a question about it",
        "https://github.com/deepspeedai/DeepSpeed/pull/6675": "introduced in 0.16.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "fixed in 0.18.3",
    },
    fixed_in="0.18.3",
    present=(Source(f"{_ENGINE}.__init__", "self.inside_no_sync_ctxt = False"),),
    fixed=(Source(f"{_ENGINE}._backward_prologue_per_tensor", "grad / self.gradient_accumulation_steps()"),),
    config=lambda job: job.pipeline is True and job.accumulates(),
    ranks=2,
    device="cpu",
)

_LEARNING_RATE = 0.02


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch  # before pipeline imports it
    from . import _pipeline as pipeline

    parameters = pipeline.train(lab, {}, _LEARNING_RATE)
    right = pipeline.of_stage(pipeline.expected([_LEARNING_RATE] * 2), parameters)
    unscaled = pipeline.of_stage(pipeline.expected([_LEARNING_RATE * pipeline.MICRO_BATCHES] * 2), parameters)
    return lab.reference.compare(
        parameters,
        right,
        {f"those of gradients {pipeline.MICRO_BATCHES} times too large": unscaled},
        after=f"after {pipeline.STEPS} steps of {pipeline.MICRO_BATCHES} micro-batches",
        what="the parameters of both stages",
    )
