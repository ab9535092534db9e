"""Sparse gradients without ZeRO are multiplied by `gradient_predivide_factor`.

Why: a dense gradient is divided by the factor before it is summed up over the ranks, and multiplied by factor / ranks
    after that. A sparse one is multiplied only by factor / ranks: it is too large by the factor.
How: a sparse gradient is divided by the number of ranks. Nothing changes where the factor is 1, its default, or with
    `prescale_gradients`, which does not use it. Not on 0.12, which was not run.
Changes: jobs with sparse gradients and a factor. A checkpoint written without the patch loads, and training continues
    with right gradients: the embedding may need another learning rate than before.
Workaround: Scripts leave the factor out. You can keep it that way. A learning rate divided by the factor, in a separate
    group for the embedding, must be restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ALLREDUCE = "deepspeed.runtime.engine:DeepSpeedEngine.sparse_allreduce"
_REDUCE = "deepspeed.runtime.engine:DeepSpeedEngine._reduce_non_expert_gradients"
_BUCKETS = "split_sparse_tensor_buckets, split_dense_tensor_buckets = split_half_float_double_sparse(grads)"

PATCH = Patch(
    title="Sparse gradients are too large by a factor of gradient_predivide_factor",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            _ALLREDUCE,
            replace="self.gradient_predivide_factor()",
            code="float(1)",
            effect="a sparse gradient was not multiplied by gradient_predivide_factor",
            when="self.gradient_average and self.gradient_predivide_factor() != 1.0",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/235": "introduced"},
    present=(Source(_ALLREDUCE, "self.postscale_gradients()"), Source(_REDUCE, _BUCKETS)),
    config=lambda job: (
        job.stage == 0
        and job.number("gradient_predivide_factor", default=1) != 1
        and job.get("prescale_gradients") is not True
    ),
    ranks=2,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch  # before the helper imports it
    from ._sparse import train

    return train(lab, ("looked up", "looked up"), {"gradient_predivide_factor": 2.0}, factor=2)
