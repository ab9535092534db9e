"""Ulysses DistributedAttention, sequence-first (batch_dim_idx=1): wrong shape of the output, backward raises.

Why: from 0.16.3 to 0.19.6 what comes back from the second all-to-all has the right values in the right order, but is
    given the shape that the first one would have batch-first. The backward pass of the first all-to-all does the same
    to the gradients of queries, keys and values, which autograd rejects: RuntimeError, _SeqAllToAll… returned an
    invalid gradient. If the number of ranks does not divide a rank's heads, the forward pass fails: shape is invalid.
How: the result has the shape [positions, samples, heads, …] of a rank's inputs, as in 0.19.7 and later. Batch-first is
    unchanged. With `sp_stream` the gradients of queries and keys are not: their order is wrong there as well, which the
    exception prevents from being trained.
Workaround: Scripts transpose queries, keys and values to batch-first, and the output back; those that only evaluate
    reshape the output. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LAYOUT = "deepspeed.sequence.layer:_generate_layout_params"
_SHAPE = "post_all2all_res_shape = [{}, head_dim]"

PATCH = Patch(
    title="Ulysses DistributedAttention, sequence-first: RuntimeError: _SeqAllToAll returned an invalid gradient",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.16.3,<0.19.7"},
    changes=(
        Edit(
            "deepspeed.sequence.layer:single_all_to_all",
            before="input_t = pre_all2all_fun(pre_all2all_permute_idx, pre_all2all_inp_shape, input)",
            code="if batch_dim_idx != 0 and scatter_idx < 2 and not async_op:\n"
            "    post_all2all_res_shape = [input.shape[0] // seq_world_size, input.shape[1],\n"
            "                              input.shape[2] * seq_world_size, input.shape[3]]",
            effect="the output of the all-to-all got its own shape (unpatched: the batch-first shape)",
            when="batch_dim_idx != 0 and scatter_idx < 2 and not async_op and list(post_all2all_res_shape) != ["
            "input.shape[0] // seq_world_size, input.shape[1], input.shape[2] * seq_world_size, input.shape[3]]",
        ),
    ),
    symptom=r"RuntimeError: Function _SeqAllToAll\w* returned an invalid gradient",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6750": "introduced in 0.16.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8317": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
    present=(Source(_LAYOUT, _SHAPE.format("bs, seq_world_size * global_seq_len, num_local_head // seq_world_size")),),
    fixed=(Source(_LAYOUT, _SHAPE.format("global_seq_len // seq_world_size, bs, seq_world_size * num_local_head")),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    reference = lab.reference  # loads torch
    from ._ulysses import attend, layout

    reports = []
    for samples in (1, 2):
        try:
            seen, right = attend(lab, 0, samples)
        except RuntimeError as error:
            if "_SeqAllToAll" in str(error) and "invalid gradient" in str(error):
                raise BugPresent(f"{layout(0, samples)}: {error}") from error
            raise
        difference = reference.largest_difference(seen, right)
        assert difference.relative < 1e-4, f"{layout(0, samples)}: {difference}"
        reports.append(f"{layout(0, samples)}: the same within {difference.relative:.1e}")
    return f"compared with attention to the whole sequence, {'; '.join(reports)}"
