"""Functions of deepspeed.zero and of the runtime that need no engine."""

from __future__ import annotations

from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.areas.losses import compare
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public


@part("zero/TiledLinear", "torch.nn.Linear", examples=150)
def _tiled_linear(lab: Lab, draw: Draw) -> None:
    wide, high = draw.integer("in_features", 1, 7), draw.integer("out_features", 1, 7)
    splits, parts = draw.integer("in_splits", 1, wide), draw.integer("out_splits", 1, high)
    linear = torch.nn.Linear(wide, high, bias=draw("bias", (True, False)))
    split, joined = draw.flag("input_is_already_split"), draw("combine_out_splits", (True, False))
    tiled = public("runtime.zero.tiling:TiledLinear")(
        *(wide, high, linear.bias is not None, splits, parts, split, joined), init_linear=linear
    )
    x = draw.tensor("x", (*draw("rows", ((2,), (), (2, 3))), wide)).clone().requires_grad_()

    def one() -> torch.Tensor:
        given: Any = x
        if split and splits > 1:
            given = torch.split(x, [b - a for a, b in zip(tiled.in_parts, tiled.in_parts[1:])], dim=-1)
        found = tiled(given)
        return found if joined else torch.cat(found, dim=-1)

    compare(draw, one, lambda: linear(x), [x], within=1e-4)


@part("zero/SparseTensor", "torch.sparse_coo_tensor", examples=80)
def _sparse(lab: Lab, draw: Draw) -> None:
    kind = public("runtime.sparse_tensor:SparseTensor")
    rows = [draw.integer(f"row {number}", 0, 4) for number in range(draw.integer("rows", 0, 4))]

    def made(seed: int) -> torch.Tensor:
        values = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(seed))
        return torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.long), values, (5, 3))

    one, other = kind(made(0)), kind(made(1))
    same(one.to_coo_tensor().to_dense(), made(0).to_dense(), "dense")
    one.add(other)
    same(one.to_coo_tensor().to_dense(), made(0).to_dense() + made(1).to_dense(), "sum")


@part("zero/clip_grad_norm_", "torch.nn.utils.clip_grad_norm_", examples=150)
def _clip(lab: Lab, draw: Draw) -> None:
    kind, limit = draw("norm_type", (2, 1, 3.0, float("inf"), "inf")), draw("max_norm", (0.5, 1e3))

    def made() -> list[torch.nn.Parameter]:
        weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (), (4,))]
        for number, each in enumerate(weights):
            if number != left:
                each.grad = torch.randn(each.shape, generator=torch.Generator().manual_seed(number)) * 3
        return weights

    left = draw("without gradient", (None, 0, 2))
    one, other = made(), made()
    got = public("runtime.utils:clip_grad_norm_")(one, limit, kind)
    wanted = torch.nn.utils.clip_grad_norm_(other, limit, float(kind))
    same(float(got), float(wanted), "norm", 1e-4)
    for first, second in zip(one, other):
        assert (first.grad is None) == (second.grad is None), "a gradient is absent"
        if second.grad is not None:
            same(first.grad, second.grad, "gradient", 1e-4)


@part("zero/get_global_norm_of_tensors", "torch.linalg.vector_norm of all elements", examples=100)
def _norm(lab: Lab, draw: Draw) -> None:
    kind = draw("norm_type", (2, 1, 3, float("inf")))
    shapes = draw("shapes", (((2, 3), ()), ((4,),), ((2,), (0,)), ((1,), (5,), (2, 2))))
    dtype = draw("dtype", (torch.float32, torch.bfloat16))
    tensors = [draw.tensor(f"tensor {number}", shape, dtype) for number, shape in enumerate(shapes)]
    every = torch.cat([each.float().flatten() for each in tensors])
    draw.assume(kind != float("inf") or all(each.numel() for each in tensors))
    found = public("runtime.utils:get_global_norm_of_tensors")(tensors, kind)
    same(float(found), float(torch.linalg.vector_norm(every, kind)), "norm", 1e-4)


@part("zero/partition_uniform", "parts that differ by one at most", examples=100)
def _uniform(lab: Lab, draw: Draw) -> None:
    items, parts = draw.integer("items", 1, 20), draw.integer("parts", 1, 8)
    found = public("runtime.utils:partition_uniform")(items, parts)
    sizes = [b - a for a, b in zip(found, found[1:])]
    assert (found[0], found[-1], len(sizes)) == (0, items, parts), f"{found}"
    assert max(sizes) - min(sizes) <= 1, f"sizes {sizes}"


@part("zero/partition_balanced", "the least possible weight of the heaviest part", examples=400)
def _balanced(lab: Lab, draw: Draw) -> None:
    weights = [draw.integer(f"weight {number}", 0, 9) for number in range(draw.integer("items", 1, 7))]
    parts = draw.integer("parts", 1, 4)
    found = public("runtime.utils:partition_balanced")(weights, parts)
    assert (found[0], found[-1], len(found)) == (0, len(weights), parts + 1), f"{found}"
    assert sorted(found) == list(found), f"{found}"

    def least(start: int, left: int) -> int:
        if left == 1:
            return sum(weights[start:])
        return min(max(sum(weights[start:end]), least(end, left - 1)) for end in range(start, len(weights) + 1))

    heaviest = max(sum(weights[a:b]) for a, b in zip(found, found[1:]))
    same(heaviest, least(0, parts), "heaviest part")
