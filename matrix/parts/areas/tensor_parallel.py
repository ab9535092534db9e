"""AutoTP: a pair of linear layers whose weights two ranks share, as one rank has them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import Absent, part, public


@part("tensor_parallel/ColumnParallel, RowParallel", "the whole weights on one rank", examples=40, ranks=2)
def _pair(lab: Lab, draw: Draw) -> None:
    column, row = public("module_inject.layers:ColumnParallel"), public("module_inject.layers:RowParallel")
    group = lab.torch.distributed.group.WORLD
    generator = torch.Generator().manual_seed(draw.integer("seed", 0, 3))
    up, down = torch.randn(6, 4, generator=generator), torch.randn(3, 6, generator=generator)
    x = draw.tensor("x", (*draw("rows", ((2,), (1, 3), (2, 3))), 4)).detach().requires_grad_()
    mine = slice(3 * lab.rank, 3 * lab.rank + 3)
    wanted = torch.relu(x @ up.t()) @ down.t()
    weights = torch.randn(wanted.shape, generator=generator)

    def gradient(y: torch.Tensor) -> torch.Tensor:
        x.grad = None
        (y * weights).sum().backward()
        assert x.grad is not None
        return x.grad

    right = gradient(wanted)
    y = row.apply(group, torch.relu(column.apply(group, x) @ up[mine].t()) @ down[:, mine].t(), False)
    same(y, wanted, "output", 1e-4)
    same(gradient(y), right, "gradient", 1e-4)


@part("tensor_parallel/get_shard_size_list", "sizes that add up, and differ by a grain at most", examples=150)
def _sizes(lab: Lab, draw: Draw) -> None:
    function = public("module_inject.tp_shard:get_shard_size_list")
    total, ranks, grain = draw.integer("size", 1, 64), draw.integer("ranks", 1, 5), draw("grain", (1, 4))
    heads = draw("heads", (None, 2, 4, 6))
    module: Any = inspect.getmodule(function)
    if hasattr(module, "AutoTPMeta"):
        sizes = function(total, ranks, module.AutoTPMeta(num_kv_heads=heads, tp_grain_size=grain))
    elif not hasattr(module, "set_tp_grain_size"):
        raise Absent("the grain is 64")
    else:
        module.set_num_kv_heads(heads)
        module.set_tp_grain_size(grain)
        sizes = function(total, ranks)
    same(sum(sizes), total, "sum of the sizes")
    if heads is None or total % heads:
        assert max(sizes) - min(sizes) < 2 * grain or total < grain, f"sizes {sizes}"
    else:
        assert all(size % (total // heads) == 0 for size in sizes), f"{sizes} cut heads of {total // heads}"
