"""ZeRO++ hpZ: a part of a parameter's second copy is never written: the backward pass uses garbage for it.

Why: with `zero_hpz_partition_size` smaller than the number of ranks, the second copy of a parameter, which the backward
    pass gathers, is partitioned over the ranks of a node. How much each rank writes of its part is computed from its
    part of the first copy. If the number of ranks does not divide the number of elements, the last part of the second
    copy is written on some nodes only, or not completely. The rest is whatever its memory held: gradients are garbage
    or nan.
How: each rank writes the parameter's elements in its part of the second copy, as in 0.13.5; nothing where it has none.
    Through 0.13.1 the second copy is also never updated, which `check` reports, not this patch.
Changes: jobs with such parameters; all others give the same numbers. A checkpoint written without the patch loads, but
    its weights were trained on such gradients.
Workaround: Scripts pad their layers, so that the elements of each parameter are a multiple of the number of ranks.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_SECOND = "deepspeed.runtime.zero.partition_parameters:Init._partition_param_sec"
_RANKS = "deepspeed.comm.comm:get_all_ranks_from_group"

# elements that are written without the patch
_WRITTEN = """(
    0 if start >= param.ds_numel
    else (param.ds_numel - start) * param.ds_secondary_tensor_num_of_groups if end > param.ds_numel
    else secondary_partition_size if secondary_end <= param.ds_numel
    else 0
)"""


def write(parameter: Any, start: int, size: int) -> None:
    """Copy what this rank's part of the second copy, `size` elements from `start` on, has of the parameter."""
    size = min(parameter.ds_numel - start, size)
    if size > 0:
        source = parameter.detach().contiguous().view(-1).narrow(0, start, size)
        parameter.ds_secondary_tensor.narrow(0, 0, size).copy_(source)


def _meets(job: Job) -> bool:
    size = job.number("zero_optimization", "zero_hpz_partition_size")
    return job.stage == 3 and size > 1 and (job.ranks is None or job.ranks > size)


PATCH = Patch(
    title="ZeRO++ hpZ, several nodes: garbage gradients if a parameter's size is not a multiple of the number of ranks",
    severity=Severity.WRONG_RESULT,
    # the bug is older: before 0.13.0, hpZ does not run beside the torch that is used here
    affects={"deepspeed": ">=0.13.0,<0.13.5"},
    changes=(
        Edit(
            _SECOND,
            replace="if start < param.ds_numel and end <= param.ds_numel:\n    ...\nelse:\n    ...",
            code="write(param, secondary_start, secondary_partition_size)",
            uses=(write,),
            effect="a parameter's second copy was written completely (unpatched: part of it is garbage)",
            when=f"max(0, min(param.ds_numel - secondary_start, secondary_partition_size)) != {_WRITTEN}",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5059": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5216": "fixed in 0.13.5",
    },
    fixed_in="0.13.5",
    present=(Source(_RANKS, "try:\n    ...\nexcept (RuntimeError, ValueError):\n    ..."),),  # hpZ runs
    fixed=(
        Source(
            _SECOND,
            "param.ds_secondary_tensor.narrow(0, 0, sec_numel)"
            ".copy_(one_dim_param.narrow(0, secondary_start, sec_numel))",
        ),
    ),
    ranks=4,
    config=_meets,
)


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    lab.require_ranks(4)
    if Version(lab.deepspeed.__version__) < Version("0.13.0"):
        raise CannotTell("before 0.13.0, hpZ does not run beside this torch")
    from ._second_copies import BEFORE, train

    # node 0's rank 1 writes nothing of the second half, node 1's rank 1 one element too few; the head's 15 are padded
    training = train(lab, width=15, partition_size=2, steps=1)
    early = training.right.clone()
    early[8 if lab.rank < 2 else 14 :] = BEFORE
    return training.compare(early)
