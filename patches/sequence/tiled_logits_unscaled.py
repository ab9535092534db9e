"""TiledFusedLogitsLoss: the gradients of the head's weights ignore gradient accumulation and other factors of the loss.

Why: TiledFusedLogitsLoss computes all gradients in its forward pass, for the factor 1. Its backward pass scales only
    the gradient of the hidden states. So with gradient accumulation, for which DeepSpeed divides the loss, the head's
    gradients are too large by the number of micro-batches; with fp16, too small by the loss scale; any other factor is
    lost, too. A loss without a backward pass still adds to them. With a head that shares its weights with the
    embedding, or fewer tiles than shards, ZeRO reduces them wrongly or raises an AssertionError.
How: the forward pass computes the gradients once, as before, but keeps them. The backward pass multiplies them, and
    autograd adds them to the weights as it does for any layer. Fewer tiles than shards are averaged as what they are.
Changes: the training of the head, or of shared weights, and through gradient clipping of all others. A checkpoint
    written without the patch loads, and training continues with the loss's own gradient.
Workaround: Scripts put the factor into the tiles' loss function, and divide the result by it. You can keep it. What
    scales `.grad` of the head's weights after the backward pass must be removed: they would be scaled twice. The patch
    is off by default for this reason, and because the weights' gradients stay in memory until the backward pass, which
    ZeRO-2 and ZeRO-3 otherwise free tile by tile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import Patch, Replace, Severity, Source
from dsfix.process.effects import ran

from ._tiled import module_of, train, with_apply

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CLASS = "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledFusedLogitsLoss"
_FORWARD, _BACKWARD = f"{_CLASS}.forward", f"{_CLASS}.backward"
_REENTRANT = "CheckpointFunctionBackward"  # of PyTorch and of DeepSpeed: not for torch.autograd.grad


class _NotByGrad(Exception):
    """The loss function uses reentrant checkpointing."""


def _graph(loss: Any) -> list[Any]:
    """The nodes that lead to the loss."""
    nodes: dict[Any, None] = {}
    left = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            left += [each for each, _ in node.next_functions]
    return list(nodes)


@contextlib.contextmanager
def _without_hooks(weights: list[Any]) -> Iterator[None]:
    """Hooks get the gradient of the whole loss, from autograd, not those of tiles."""
    hooks = [(own, dict(own)) for weight in weights if (own := weight._backward_hooks)]
    for own, _ in hooks:
        own.clear()
    try:
        yield
    finally:
        for own, kept in hooks:
            own.update(kept)


def _give_shape(node: Any, shape: Any) -> None:
    """AccumulateGrad needs a weight of the gradient's shape, but not its values, which ZeRO-3 has partitioned."""
    weight, partitioned = node.variable, []

    def before(gradients: Any) -> None:
        if weight.shape != shape:
            partitioned.append(weight.data)
            weight.data = weight.data.new_empty(1).expand(shape)

    def after(*gradients: Any) -> None:
        first.remove()
        last.remove()
        if partitioned:
            weight.data = partitioned.pop()

    first, last = node.register_prehook(before), node.register_hook(after)


def _by_autograd(original: Any) -> Any:
    """The class, with an `apply` that leaves the gradients of the weights to autograd."""
    import torch

    class LossOfTiles(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
        """The loss, whose gradients are known."""

        @staticmethod
        def forward(ctx: Any, loss: Any, gradients: Any, tiles: int, *inputs: Any) -> Any:
            ctx.save_for_backward(*gradients)
            ctx.tiles = tiles  # that the loss is the mean of
            return loss.detach()

        @staticmethod
        def backward(ctx: Any, factor: Any) -> Any:  # type: ignore[override,unused-ignore]
            ran(__name__)  # the factor is on the device
            gradients = [gradient * (factor / ctx.tiles) for gradient in ctx.saved_tensors]
            for (node, _), gradient in zip(ctx.next_functions[-len(gradients) :], gradients):
                if hasattr(node, "variable") and node.variable.shape != gradient.shape:
                    _give_shape(node, gradient.shape)
            return (None, None, None, *gradients)

    def apply(fn: Any, module: Any, x: Any, y: Any, mask: Any, shards: int, compute_params: Any, how: str) -> Any:
        rest = y, mask, shards, compute_params or [], how
        if not torch.is_grad_enabled():
            return original.apply(fn, module, x.detach(), *rest)
        of_x: Any = torch.zeros(x.shape, dtype=x.dtype, device=x.device) if x.requires_grad else None
        of_weights: dict[Any, Any] = {}
        nodes: list[Any] = []  # keep the shape that a weight has only while ZeRO-3 has gathered it
        tiles = tokens = 0

        def with_gradients(module: Any, tile: Any, *targets: Any) -> Any:
            nonlocal tiles, tokens
            tile = tile.detach().requires_grad_(of_x is not None)
            with torch.enable_grad():
                loss = fn(module, tile, *targets)
            graph = _graph(loss)
            if any(type(node).__name__ == _REENTRANT for node in graph):
                raise _NotByGrad
            leaves = [node for node in graph if getattr(node, "variable", tile) is not tile]
            nodes.extend(leaves)
            inputs = [tile][: of_x is not None] + [node.variable for node in leaves]
            if inputs and loss.requires_grad:
                with _without_hooks(inputs):
                    found = dict(zip(inputs, torch.autograd.grad(loss, inputs, allow_unused=True)))
                gradient = found.pop(tile, None)
                if gradient is not None:
                    of_x.flatten(0, 1)[tokens : tokens + len(tile)] = gradient
                for weight, gradient in found.items():
                    if gradient is not None and weight in of_weights:
                        of_weights[weight].add_(gradient)
                    elif gradient is not None:  # which may be that of another weight, too, or expanded
                        of_weights[weight] = gradient.clone(memory_format=torch.contiguous_format)
            tiles, tokens = tiles + 1, tokens + len(tile)
            return loss.detach().requires_grad_()  # 0.17.4 calls its backward()

        try:
            loss = original.apply(with_gradients, module, x.detach(), y, mask, shards, [], how)
        except _NotByGrad:
            return original.apply(fn, module, x, *rest)
        inputs, gradients = list(of_weights), list(of_weights.values())
        if of_x is not None:
            inputs, gradients = [x, *inputs], [of_x, *gradients]
        return LossOfTiles.apply(loss, gradients, tiles if how == "mean" else 1, *inputs)  # type: ignore[no-untyped-call,unused-ignore]

    return with_apply(original, apply)


PATCH = Patch(
    title="TiledFusedLogitsLoss: gradients of the head ignore gradient accumulation and other factors of the loss",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.17.4"},
    changes=(Replace(_CLASS, _by_autograd),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7437": "introduced in 0.17.4",
    },
    present=(
        Source(_FORWARD, "torch.autograd.backward(output, incoming_grad)"),
        Source(_BACKWARD, "if grads[0] != 1.0:\n    x_grad *= grads[0]"),
    ),
    ranks=2,
)

_WIDTH, _WORDS, _LENGTH, _TILES = 8, 12, 6, 2
_LEARNING_RATE, _STEPS, _ACCUMULATED = 0.5, 2, 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, reference = lab.torch, lab.reference
    tiles = module_of(lab, "TiledFusedLogitsLoss").TiledFusedLogitsLoss

    def whole(self: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(self.head(x).view(-1, _WORDS), y.view(-1))

    def tiled(self: Any, x: Any, y: Any) -> Any:
        return tiles.apply(whole, self, x, y, None, _TILES, [self.head.weight], "mean")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, loss: Any, tied: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.below = torch.nn.Embedding(_WORDS, _WIDTH), torch.nn.Linear(_WIDTH, _WIDTH)
            self.head = torch.nn.Linear(_WIDTH, _WORDS, bias=False)
            if tied:
                self.head.weight = self.words.weight
            self.head.weight.register_hook(lambda gradient: gradient / 2)  # once, as with plain PyTorch
            self.loss = loss

        def forward(self, x: Any, y: Any) -> Any:
            return self.loss(self, self.below(self.words(x)).tanh(), y)

    generator = torch.Generator().manual_seed(0)
    shape = (_STEPS, _ACCUMULATED, 2, 2, 1, _LENGTH)  # the ranks, inputs and labels, one sample
    batches = torch.randint(_WORDS, shape, generator=generator)

    def plain(tied: bool, factor: int = 1) -> dict[str, Any]:
        """factor: of the head's gradients."""
        model = Model(whole, tied)
        if factor != 1:
            model.head.weight.register_hook(lambda gradient: gradient * factor)
        steps = [[tuple(each) for each in step.flatten(0, 1)] for step in batches]
        result: dict[str, Any] = reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters
        return result

    reports = []
    for tied in (False, True):
        right = plain(tied)
        wrong = {} if tied else {"those of a head with two times the gradient": plain(tied, _ACCUMULATED)}
        for stage in range(4):
            own = batches[:, :, lab.rank].flatten(0, 1)
            seen = train(lab, Model(tiled, tied), own, _LEARNING_RATE, stage, _ACCUMULATED)
            after = f"stage {stage}{', tied weights' if tied else ''}: after {_STEPS} steps"
            reports.append(reference.compare(seen, right, wrong, after=after))
    return "; ".join(reports)
