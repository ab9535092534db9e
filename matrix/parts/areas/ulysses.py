"""Ulysses: attention and batches of two ranks, as one rank has them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from dsfix.lab.session import Lab
from matrix.parts.areas.losses import flat_gathers
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public


@part("ulysses/DistributedAttention", "the attention on the whole sequence", examples=40, ranks=2)
def _attention(lab: Lab, draw: Draw) -> None:
    kind = public("sequence.layer:DistributedAttention")
    samples, part_length, heads, size = draw.integer("samples", 1, 2), draw.integer("length", 1, 3), 2, 4
    groups = draw("heads of keys", (2, 4))
    heads = groups * draw.integer("queries of a key", 1, 2)
    batch_first = draw.flag("batch first")

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> torch.Tensor:
        order = (0, 2, 1, 3) if batch_first else (1, 2, 0, 3)
        q, k, v = (each.permute(*order) for each in (q, k, v))
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v)
        return found.permute(*((0, 2, 1, 3) if batch_first else (2, 0, 1, 3)))

    length, dim = 2 * part_length, 1 if batch_first else 0
    whole = []
    for number, count in enumerate((heads, groups, groups)):
        shape = (samples, length, count, size) if batch_first else (length, samples, count, size)
        whole.append(torch.randn(shape, generator=torch.Generator().manual_seed(number)).requires_grad_())
    wanted = attention(*whole)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(7))
    (wanted * weights).sum().backward()
    mine = slice(lab.rank * part_length, (lab.rank + 1) * part_length)
    at = (slice(None), mine) if batch_first else (mine,)
    own = [each.detach()[at].clone().requires_grad_() for each in whole]
    layer = kind(attention, lab.torch.distributed.group.WORLD, 2, dim)
    got = layer(*own, 0 if batch_first else 1)
    same(got, wanted[at], "output", 1e-4)
    (got * weights[at]).sum().backward()
    for one, other, name in zip(own, whole, "qkv"):
        assert other.grad is not None
        same(one.grad, other.grad[at], f"gradient of {name}", 1e-4)


@part(
    "ulysses/UlyssesSPDataLoaderAdapter",
    "its documentation: each rank's batches in turn, cut along the length",
    ranks=2,
)
def _batches(lab: Lab, draw: Draw) -> None:
    kind = public("runtime.sequence_parallel.ulysses_sp:UlyssesSPDataLoaderAdapter")
    samples, chunk = draw.integer("samples", 1, 2), draw.integer("chunk", 1, 3)
    count, epochs = draw.integer("batches", 1, 3), draw.integer("epochs", 1, 2)
    extra = draw("further", ("nothing", "string", "features"))  # batches of one length: gloo gathers no others

    def batch(rank: int, number: int) -> dict[str, Any]:
        length = 2 * chunk
        ids = torch.arange(samples * length).view(samples, length) + 1000 * rank + 100 * number
        found: dict[str, Any] = {"input_ids": ids, "labels": ids + 1, "position_ids": ids * 0 + torch.arange(length)}
        if extra == "string":
            found["name"] = f"{rank} {number}"
        if extra == "features":
            found["features"] = torch.randn(samples, length, 3, generator=torch.Generator().manual_seed(number))
        return found

    group = lab.torch.distributed.group.WORLD
    loader = kind([batch(lab.rank, number) for number in range(count)], lab.rank, group, 2, torch.device("cpu"))
    same(len(loader), 2 * count, "length")
    for epoch in range(epochs):
        with flat_gathers(lab):
            found = list(loader)
        same(len(found), 2 * count, f"batches of epoch {epoch}")
        for number, got in enumerate(found):
            whole = batch(number % 2, number // 2)
            shifted = functional.pad(whole.pop("labels"), (0, 1), value=-100)[:, 1:]
            whole["shift_labels"] = shifted
            length = whole["input_ids"].shape[1] // 2
            cut = slice(lab.rank * length, (lab.rank + 1) * length)
            wanted = {k: v[:, cut] if torch.is_tensor(v) else v for k, v in whole.items()}
            same(dict(got), wanted, f"batch {number}")
