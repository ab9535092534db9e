"""deepspeed.comm: each collective of two ranks by its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public, without_reference

Sent = list[torch.Tensor]  # by rank


def _all_gather(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = [torch.empty_like(each) for each in sent]
    comm.all_gather(got, sent[rank])
    return got, sent


def _into_tensor(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = torch.empty(2 * sent[0].shape[0], *sent[0].shape[1:], dtype=sent[0].dtype)
    comm.all_gather_into_tensor(got, sent[rank])
    return got, torch.cat(sent)


def _reduce(name: str, wanted: Callable[[Sent], torch.Tensor]) -> Callable[[Any, Sent, int], tuple[Any, Any]]:
    def call(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
        got = sent[rank].clone()
        comm.all_reduce(got, op=getattr(comm.ReduceOp, name))
        return got, wanted(sent)

    return call


def _reduce_scatter(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = torch.empty_like(sent[rank])
    comm.reduce_scatter_fn(got, torch.cat([sent[rank], sent[rank] * 3]))
    return got, sum(sent) * (1, 3)[rank]


def _all_to_all(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = torch.empty(2, *sent[0].shape, dtype=sent[0].dtype)
    comm.all_to_all_single(got, torch.stack([sent[rank], sent[rank] * 3]))
    return got, torch.stack(sent) * (1, 3)[rank]


def _broadcast(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = sent[rank].clone()
    comm.broadcast(got, 1)
    return got, sent[1]


def _scatter(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = torch.empty_like(sent[rank])
    comm.scatter(got, [sent[0], sent[1]] if rank == 0 else None, src=0)
    return got, sent[rank]


def _gather(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    got = [torch.empty_like(each) for each in sent]
    comm.gather(sent[rank], got if rank == 0 else None, dst=0)
    return (got, sent) if rank == 0 else (0, 0)


def _mean(comm: Any, sent: Sent, rank: int) -> tuple[Any, Any]:
    group = torch.distributed.group.WORLD
    scatter = public("runtime.comm.coalesced_collectives:reduce_scatter_coalesced")
    got = scatter([sent[rank].clone(), (sent[rank] * 2).clone()], group)
    mean = sum(sent).flatten() / 2  # type: ignore[union-attr]
    size = -(-mean.numel() // 2)
    wanted = [times * mean[rank * size : (rank + 1) * size] for times in (1, 2)]
    return [each[: one.numel()] for each, one in zip(got, wanted)], wanted


_CALLS: dict[str, Callable[[Any, Sent, int], tuple[Any, Any]]] = {
    "all_gather": _all_gather,
    "all_gather_into_tensor": _into_tensor,
    "all_reduce SUM": _reduce("SUM", lambda sent: sent[0] + sent[1]),
    "all_reduce MAX": _reduce("MAX", lambda sent: torch.maximum(*sent)),
    "all_reduce PRODUCT": _reduce("PRODUCT", lambda sent: sent[0] * sent[1]),
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "reduce_scatter_coalesced": _mean,
}


def _collective(name: str) -> Callable[[Lab, Draw], None]:
    def check(lab: Lab, draw: Draw) -> None:
        dtype = draw("dtype", (torch.float32, torch.bfloat16, torch.int64))
        shape = (draw.integer("rows", 1, 3), *draw("more", ((), (2,), (0,))))
        draw.assume(name != "reduce_scatter_coalesced" or (dtype != torch.int64 and 0 not in shape))
        generator = torch.Generator().manual_seed(draw.integer("seed", 0, 3))
        sent = [(torch.randn(shape, generator=generator) * 4).to(dtype) for _ in range(2)]
        got, wanted = _CALLS[name](lab.deepspeed.comm, sent, lab.rank)
        same(got, wanted, "result")

    return check


for _name in _CALLS:
    part(f"comm/{_name}", "its definition", examples=20, ranks=2)(_collective(_name))

without_reference(
    {
        "comm/all_gather_coalesced": "gloo has no coalescing: needs NCCL",
        "comm/inference_all_reduce": "its shared-memory operator has to be compiled",
        "comm/compressed_allreduce of 1-bit optimizers": "needs CuPy or MPI",
    }
)
