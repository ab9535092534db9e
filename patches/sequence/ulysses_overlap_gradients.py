"""Ulysses DistributedAttention with overlap (`sp_stream`): gradients of queries and keys are in the wrong places.

Why: with a stream for communication, the backward pass starts the exchange of the gradients of queries and keys, and
    returns the receive buffer before the data have arrived, in the order in which they arrive. A hook should wait and
    put the values in their places; it does so on a copy that it drops. Since 0.16.3 the weights before the attention
    are trained with these gradients; up to 0.16.2 their shape has five dimensions, which autograd rejects:
    RuntimeError, _SeqAllToAllBackward returned an invalid gradient.
How: the hook waits for the exchange, and what it returns is used. It is registered on a view of the queries, or keys,
    that only this exchange uses, so that gradients from elsewhere are added and not replaced. Without `sp_stream`
    nothing changes. With it, an evaluation without gradients no longer raises AttributeError, and the backward pass no
    AssertionError with newer torch, in which a stream does not compare unequal to None.
Changes: jobs with `sp_stream`: the gradients of queries and keys, and of all that they are computed from. A model
    trained without the patch has learned from wrong gradients: its checkpoint loads, but that training has to be
    restarted.
Workaround: Scripts do without `sp_stream`, or register hooks on queries and keys that wait for `overlap_handles` and
    return what has been received, in its places. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LAYER = "deepspeed.sequence.layer"
_FORWARD = f"{_LAYER}:DistributedAttention.forward"
_LATER = "self.overlap_handles[type + '_post_all2all_func'](all2all_output)"


def view_of(attention: Any, tensor: Any) -> Any:
    """A view of queries or keys for the exchange alone, if it overlaps."""
    if not attention.sp_overlap_comm:
        return tensor
    view = tensor.view_as(tensor)
    if hasattr(tensor, "done_event"):
        view.done_event = tensor.done_event
    return view


def hook_on(tensor: Any, hook: Any) -> None:
    """Lets `hook` replace the gradient of the tensor, if it has one."""
    if tensor.requires_grad:
        tensor.register_hook(hook)


def in_its_shape(received: Any, sent: Any, scattered: int, gathered: int, ranks: int) -> Any:
    """What is being received, in the shape that it will have, so that autograd accepts it."""
    shape = list(sent.shape)
    shape[scattered] //= ranks
    shape[gathered] *= ranks
    return received.view(shape)


def _hook(layer: str) -> Edit:
    return Edit(
        _FORWARD,
        replace=f"grad_fn_{layer[0]} = {layer}.grad_fn.next_functions[0][0]\n"
        f"grad_fn_{layer[0]}.register_prehook(bwd_hook(layer_type='{layer[0]}'))",
        code=f"hook_on({layer}, bwd_hook(layer_type='{layer[0]}'))",
        uses=(hook_on,),
    )


PATCH = Patch(
    title="Ulysses DistributedAttention with sp_stream: wrong gradients of queries and keys",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.5,<0.19.7"},
    changes=(
        Edit(
            f"{_LAYER}:_SeqAllToAll.forward",
            after="res = single_all_to_all(input, scatter_idx, gather_idx, batch_dim_idx, group, True, handle, type)",
            code="res = in_its_shape(res, input, scatter_idx, gather_idx, dist.get_world_size(group))",
            uses=(in_its_shape,),
        ),
        Edit(f"{_LAYER}:_SeqAllToAll.forward", replace="ctx.stream != None", code="ctx.stream is not None"),
        Edit(
            _FORWARD,
            before="self.layer_sync(query)",
            code="query, key = view_of(self, query), view_of(self, key)",
            uses=(view_of,),
        ),
        Edit(
            _FORWARD,
            replace=f"grad = list(grad)\ngrad[0] = {_LATER}\ngrad = tuple(grad)",
            code=f"return {_LATER}.reshape(grad.shape)",
            effect="gradients of queries or keys were put in their places (unpatched: mixed up)",
            when="dist.get_world_size(self.spg) > 1",
        ),
        _hook("query"),
        _hook("key"),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5691": "introduced in 0.14.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/6750": "fixed in 0.16.3: the shape, not the places",
    },
    fixed_in="0.19.7",
    fixed=(Source(_FORWARD, "query.register_hook(bwd_hook(layer_type='q'))"),),
    ranks=2,
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, reference = lab.torch, lab.reference
    from ._ulysses import attend, layout, overlaps

    if not overlaps(lab):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no sp_stream")

    class Stream(torch.cuda.Stream):  # type: ignore[name-defined,misc,unused-ignore]
        """Is unequal to None with any torch."""

        def __ne__(self, other: object) -> bool:
            return not self == other

        __hash__ = torch.cuda.Stream.__hash__

    reports = []
    for samples in (1, 2):
        stream = Stream()
        stream.activation_buffer_list = []  # what Megatron-DeepSpeed sets, and releases through 0.16.2 delete
        which = layout(1, samples)
        try:
            seen, right = attend(lab, 1, samples, stream)
        except RuntimeError as error:
            if "_SeqAllToAll" in str(error) and "invalid gradient" in str(error):
                raise BugPresent(f"{which}: {error}") from error
            raise
        difference = reference.largest_difference(seen, right)
        if difference.relative >= 1e-4:
            for name in ("gradient of the queries", "gradient of the keys"):
                in_order = [each.pop(name).flatten().cpu().sort().values for each in (seen, right)]
                assert torch.allclose(*in_order, atol=1e-5), f"{which}: {difference}"
            others = reference.largest_difference(seen, right)
            assert others.relative < 1e-4, f"{which}: {others}"
            raise BugPresent(f"{which}: the gradients of queries and keys have the right values in other places")
        reports.append(f"{which}: the same within {difference.relative:.1e}")
    return f"compared with attention to the whole sequence, {'; '.join(reports)}"
