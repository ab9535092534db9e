"""Ulysses DistributedAttention mixes up samples, heads and positions with more than one sample per micro-batch.

Why: from 0.12.4 to 0.14.4 one all-to-all replaces a list of tensors, and what it exchanges is reshaped as if the batch
    had one sample. Sequence-first (as Megatron-DeepSpeed has it), the way back from heads to positions, in forward and
    backward, gives each sample other samples' heads: nothing fails. Batch-first, the same raises RuntimeError (shape is
    invalid). 0.14.4 fixes the wrong dimension: sequence-first with several samples stays wrong, and batch-first with
    one sample, which was right before, is wrong as well.
How: the ranks' parts are split and joined along the dimensions that the caller names, as through 0.12.3 and since
    0.14.5. One exchange of the same size as before; the same numbers where they were right.
Changes: jobs with the layouts above: all that attention computes. A model trained without the patch has learned with
    mixed-up heads: its checkpoint loads, but that training has to be restarted.
Workaround: Scripts train with one sample per micro-batch, sequence-first. You can keep it. Code that puts mixed-up
    heads back into their places must be removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EXCHANGE = "deepspeed.sequence.layer:single_all_to_all"


def split(tensor: Any, shape: list[int], dimension: int, ranks: int) -> Any:
    """The tensor's parts for each rank, along a new first dimension; shape: of one part."""
    position = len(shape[:dimension])  # also of a negative dimension
    return tensor.reshape([*shape[:dimension], ranks, *shape[dimension:]]).movedim(position, 0).contiguous()


def before(tensor: Any, shape: list[int], dimension: int) -> Any:
    """The tensor with its first dimension moved to just before another one; shape: without the first dimension."""
    return tensor.movedim(0, len(shape[:dimension])).contiguous()


PATCH = Patch(
    title="Ulysses DistributedAttention mixes up samples, heads and positions if a micro-batch has several samples",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.4,<0.14.5"},
    changes=(
        Edit(
            _EXCHANGE,
            replace="if scatter_idx < 2:\n    ...\nelse:\n    ...",
            code="input_t = split(input, inp_shape, scatter_idx, seq_world_size)",
            uses=(split,),
            effect=RAN,  # for a single sample most layouts are right
            when="seq_world_size > 1",
        ),
        Edit(
            _EXCHANGE,
            replace="if scatter_idx < 2:\n    ...",
            code="output = before(output, inp_shape, gather_idx)",
            uses=(before,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4695": "introduced in 0.12.4",
        "https://github.com/deepspeedai/DeepSpeed/pull/5664": "related: changes which layouts are wrong (0.14.4)",
        "https://github.com/deepspeedai/DeepSpeed/pull/5823": "fixed in 0.14.5",
    },
    fixed_in="0.14.5",
    present=(  # not corrected in another place
        Source(
            _EXCHANGE,
            "return output.reshape(inp_shape[:gather_idx] + [inp_shape[gather_idx] * seq_world_size]"
            " + inp_shape[gather_idx + 1:]).contiguous()",
        ),
    ),
    fixed=(Source(_EXCHANGE, "if batch_dim_idx == 0:\n    ...\nelse:\n    ..."),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from ._ulysses import attend, layout

    wrong, reports = [], []
    for sequence, samples in ((0, 1), (1, 1), (0, 2), (1, 2)):
        which = layout(sequence, samples)
        try:
            seen, right = attend(lab, sequence, samples)
        except RuntimeError as error:
            if sequence == 1 and samples > 1 and "is invalid for input of size" in str(error):
                wrong.append(f"{which}: {error}")
                continue
            raise
        difference = lab.reference.largest_difference(seen, right)
        if difference.relative < 1e-4:
            reports.append(f"{which}: the same within {difference.relative:.1e}")
            continue
        in_order = [each["output"].flatten().cpu().sort().values for each in (seen, right)]
        assert torch.allclose(*in_order, atol=1e-5), f"{which}: {difference}"
        wrong.append(f"{which}: the output has the right values in other places")
    if wrong:
        raise BugPresent("; ".join(wrong))
    return f"compared with attention to the whole sequence, {'; '.join(reports)}"
