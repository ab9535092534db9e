"""bf16 with ZeRO-1 and gradient accumulation in fp32: the last micro-batch of each step is not reduced.

Why: BF16_Optimizer adds a micro-batch's gradients to the fp32 ones in its `backward_epilogue`. 0.18.5 to 0.18.9 call it
    after the reduction, so the last micro-batch before a step is missing from the average: each rank updates its part
    of the weights from its own last micro-batch, and without accumulation nothing is reduced at all. Since 0.17.6 this
    optimizer is used only for `data_types.grad_accum_dtype: "fp32"` with bf16 and ZeRO-1 (0.17.6 to 0.18.4: patch
    bf16_zero1_silently_off). `bf16.immediate_grad_update` is not affected.
How: for BF16_Optimizer the epilogue comes before the reduction. For all other optimizers, and on a single rank, it
    stays where it is: there a reduction only rounds to its data type, by default bf16, and what comes after it is not
    rounded.
Changes: with several ranks, each step's gradient and its norm cover all ranks' micro-batches. A checkpoint written
    without the patch can be resumed; its momentum comes from noisier gradients.
Workaround: The config sets `"bf16": {"immediate_grad_update": true}`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EPILOGUE = "deepspeed.runtime.engine:DeepSpeedEngine._backward_epilogue"

PATCH = Patch(
    title="bf16 + ZeRO-1 + gradient accumulation in fp32: the last micro-batch of each step is not reduced",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.5,<0.19.0"},
    changes=(
        Edit(
            _EPILOGUE,
            before="if self.enable_backward_allreduce and not self.inside_no_sync_ctxt:\n    ...",
            code="averaged = isinstance(self.optimizer, BF16_Optimizer)"
            " and dist.get_world_size(group=self.optimizer.dp_process_group) > 1\n"
            "if averaged:\n    self.optimizer.backward_epilogue()",
            effect="the last micro-batch was averaged across ranks like the others",
            when="isinstance(self.optimizer, BF16_Optimizer) and not self.optimizer.immediate_grad_update"
            " and self.enable_backward_allreduce and not self.inside_no_sync_ctxt"
            " and self.is_gradient_accumulation_boundary()"
            " and dist.get_world_size(group=self.optimizer.dp_process_group) > 1",
        ),
        Edit(
            _EPILOGUE,
            replace="self.optimizer.backward_epilogue()\nself.optimizer.exit_backward()",
            code="if not averaged:\n    self.optimizer.backward_epilogue()\nself.optimizer.exit_backward()",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3, where nothing used this optimizer",
        "https://github.com/deepspeedai/DeepSpeed/pull/7985": "fixed in 0.19.0",
    },
    fixed_in="0.19.0",
    present=(Source("deepspeed.runtime.constants", "DDP_BFLOAT16 = 'ddp_bf16'"),),
    fixed=(Source(_EPILOGUE, "bf16_optimizer = isinstance(self.optimizer, BF16_Optimizer)"),),
    ranks=2,
    config=lambda job: job.stage == 1 and job.may_be("bf16") and job.fp32_gradients,
)

_LEARNING_RATE = 0.05
_MICRO_BATCHES = 4


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    models = lab.models
    from .. import _half as half

    batches = [[models.regression_batch(rank, i) for i in range(_MICRO_BATCHES)] for rank in range(lab.world_size)]
    expected = half.sgd_weights(batches[0] + batches[1], _LEARNING_RATE)
    # the rank's own last micro-batch instead of the mean over all ranks
    last = batches[lab.rank][-1:]
    unreduced = half.sgd_weights(batches[0][:-1] + batches[1][:-1] + last + last, _LEARNING_RATE)
    own = half.zero1_sgd_weights(lab, batches[lab.rank], _LEARNING_RATE)
    difference = half.zero1_difference(lab, own, expected)
    alone = half.sgd_weights(batches[lab.rank], _LEARNING_RATE)
    if half.zero1_difference(lab, own, alone) < 1e-5 < difference:
        raise CannotTell("another bug of this release: BF16_Optimizer reduces no gradients at all (through 0.13.2)")
    done = f"after one step of {_MICRO_BATCHES} micro-batches on {lab.world_size} ranks"
    if half.zero1_difference(lab, own, unreduced) < 1e-5 < difference:
        raise BugPresent(
            f"{done} the last micro-batch is the rank's own, not the mean: the weights are off by {difference:.1e}"
        )
    assert difference < 1e-5, f"{done} the weights are off by {difference:.1e}"
    return f"{done} the weights match plain PyTorch within {difference:.1e}"
