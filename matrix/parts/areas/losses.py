"""Losses and layers that are computed in tiles, against the same function on the whole input."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public

_ULYSSES = "runtime.sequence_parallel.ulysses_sp"


def labels(draw: Draw, shape: Sequence[int], vocabulary: int, one: bool = True) -> torch.Tensor:
    """With some that are ignored; `one`: at least one is not."""
    seed, ignored = draw.integer("seed of labels", 0, 3), draw("ignored", ("none", "some", "most"))
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(vocabulary, tuple(shape), generator=generator)
    share = {"none": 0.0, "some": 0.4, "most": 0.9}[ignored]
    made[torch.rand(tuple(shape), generator=generator) < share] = -100
    if one and made.numel() and bool((made == -100).all()):
        made.view(-1)[0] = 0
    return made


def gradients(
    function: Callable[..., torch.Tensor],
    tensors: Sequence[torch.Tensor],
    scale: float = 1.0,
    beside: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The value of a function and the gradients of `tensors`, of it times `scale` plus the sum of `beside` cubed."""
    for each in tensors:
        each.grad = None
    # first, so that its backward pass comes last
    other = sum((each.pow(3).sum() for each in beside), torch.zeros(()))
    value = function()
    (other + value.sum() * scale).backward()
    return value.detach(), [None if each.grad is None else each.grad.clone() for each in tensors]


def compare(
    draw: Draw,
    function: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor],
    tensors: Sequence[torch.Tensor],
    within: float = 0.0,
) -> None:
    """Value and gradients; also where the loss is scaled, or is one of two summands."""
    scale = draw("loss times", (1.0, 0.5))
    beside = tensors[:1] if draw.flag("a second loss") else ()
    wanted, right = gradients(reference, tensors, scale, beside)
    got, seen = gradients(function, tensors, scale, beside)
    same(got, wanted, "value", within)
    for number, (one, other) in enumerate(zip(seen, right)):
        assert (one is None) == (other is None), f"gradient of tensor {number} is {one if one is None else 'there'}"
        if other is not None:
            same(one, other, f"gradient of tensor {number}", within)


@contextlib.contextmanager
def flat_gathers(lab: Lab) -> Iterator[None]:
    """all_gather by the number of elements, as with NCCL; gloo compares the shapes, too."""
    comm: Any = lab.deepspeed.comm
    many, one = comm.all_gather, comm.all_gather_into_tensor

    def all_gather(outputs: Sequence[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> Any:
        return many([each.view(-1) for each in outputs], tensor.reshape(-1), group=group)

    def all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor, group: Any = None) -> Any:
        return one(output.view(-1), tensor.reshape(-1), group=group)

    comm.all_gather, comm.all_gather_into_tensor = all_gather, all_gather_into_tensor
    try:
        yield
    finally:
        comm.all_gather, comm.all_gather_into_tensor = many, one


class _MLP(torch.nn.Module):
    def __init__(self, width: int, vocabulary: int = 0) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, vocabulary or width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.down(torch.relu(self.up(x)))
        return value


def _input(draw: Draw, *shape: int) -> torch.Tensor:
    return draw.tensor("x", shape).requires_grad_(draw("x needs gradient", (True, False)))


def _trained(draw: Draw, module: torch.nn.Module) -> list[torch.nn.Parameter]:
    weights = list(module.parameters())
    if draw.flag("first weight frozen"):
        weights[0].requires_grad_(False)
    return weights


@part("losses/TiledMLP", "the MLP on the whole input", examples=200)
def _tiled_mlp(lab: Lab, draw: Draw) -> None:
    tiled = public(f"{_ULYSSES}:TiledMLP")
    model = _MLP(4)
    shape = (draw.integer("samples", 1, 3), draw.integer("length", 1, 6), 4)
    x = _input(draw, *(shape[1:] if draw.flag("two dimensions") else shape))
    tiles, weights = draw.integer("tiles", 1, 4), _trained(draw, model)

    def one() -> torch.Tensor:
        value: torch.Tensor = tiled.apply(_MLP.forward, model, x, tiles, weights)
        return value

    compare(draw, one, lambda: model(x), [x, *weights])


@part("losses/sequence_tiled_compute", "the function on the whole input", examples=200)
def _tiled_compute(lab: Lab, draw: Draw) -> None:
    compute = public(f"{_ULYSSES}:sequence_tiled_compute")
    model = _MLP(4, 5 if (loss := draw.flag("loss")) else 0)
    samples, length = draw.integer("samples", 1, 3), draw.integer("length", 1, 6)
    tiles = draw.integer("tiles", 1, 4)
    x, weights = _input(draw, samples, length, 4), _trained(draw, model)
    parameters = weights if draw("compute_params", ("given", "None")) == "given" else None
    if not loss:
        compare(
            draw,
            lambda: compute(lambda x: model(x), length, tiles, {"x": x}, {}, "x", parameters, 1, None),
            lambda: model(x),
            [x, *weights],
        )
        return
    wanted = labels(draw, (samples, length), 5)
    reduction = draw("reduction", ("sum", "mean"))
    draw.assume(reduction == "sum" or (length % tiles == 0 and bool((wanted != -100).all())))  # else not told apart

    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x).reshape(-1, 5), y.reshape(-1), reduction=reduction)

    compare(
        draw,
        lambda: compute(one, length, tiles, {"x": x, "y": wanted}, {}, "x", parameters, 0, reduction),
        lambda: one(x, wanted),
        [x, *weights],
    )


@part("losses/TiledFusedLogitsLoss", "the loss on the whole input", examples=200)
def _fused_logits(lab: Lab, draw: Draw) -> None:
    tiled = public(f"{_ULYSSES}:TiledFusedLogitsLoss")
    model = _MLP(4, 5)
    samples, length = draw.integer("samples", 1, 3), draw.integer("length", 1, 6)
    tiles, weights = draw.integer("tiles", 1, 4), _trained(draw, model)
    x, wanted = _input(draw, samples, length, 4), labels(draw, (samples, length), 5)
    reduction = draw("reduction", ("sum", "mean"))
    draw.assume(reduction == "sum" or (samples * length % tiles == 0 and bool((wanted != -100).all())))
    masked = draw.flag("mask")
    mask = wanted != 0 if masked else None

    def one(model: Any, x: torch.Tensor, y: torch.Tensor, mask: Any = None) -> torch.Tensor:
        y = y if mask is None else y.masked_fill(~mask, -100)
        found = functional.cross_entropy(model(x).reshape(-1, 5), y.reshape(-1), reduction="sum")
        return found if reduction == "sum" else found / y.numel()

    compare(
        draw,
        lambda: tiled.apply(one, model, x, wanted, mask, tiles, weights, reduction),
        lambda: one(model, x, wanted, mask),
        [x, *weights],
    )


@part("losses/TiledLoss", "the loss on the whole input", examples=200)
def _tiled_loss(lab: Lab, draw: Draw) -> None:
    tiled = public(f"{_ULYSSES}:TiledLoss")
    length, vocabulary = draw.integer("length", 1, 8), 5
    logits = draw.tensor("logits", (1, length, vocabulary)).detach().requires_grad_()
    wanted = labels(draw, (1, length), vocabulary)

    def loss(logits: torch.Tensor, labels: Any, vocab_size: int, shift_labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.view(-1, vocab_size), shift_labels.view(-1), ignore_index=-100)

    tiles = draw.integer("tiles", 1, 4)
    compare(
        draw,
        lambda: tiled.apply(loss, logits, vocabulary, wanted, tiles),
        lambda: loss(logits, None, vocabulary, wanted),
        [logits],
    )


def _cross_entropy(name: str, examples: int = 300) -> Callable[[Lab, Draw], None]:
    def check(lab: Lab, draw: Draw) -> None:
        function = public(name)
        dtype = draw("dtype", (torch.float32, torch.bfloat16, torch.float64))
        rows, vocabulary = draw("rows", ((3,), (1,), (2, 3), (0,))), draw.integer("vocabulary", 1, 6)
        reduction = draw("reduction", ("none", "sum", "mean"))
        ignored = draw("ignore_index", (-100, 0))
        wanted = labels(draw, rows, vocabulary)
        large = draw("logits times", (1.0, 100.0))
        options: dict[str, Any] = {"reduction": reduction, "ignore_index": ignored}
        draw.assume(reduction != "mean" or bool(((wanted != ignored) & (wanted != -100)).any()))
        wanted = wanted.where(wanted != -100, torch.tensor(ignored))
        if "linear" in name:
            draw.assume(dtype != torch.float64)
            hidden = (draw.tensor("hidden", (*rows, 4)).to(dtype)).detach().requires_grad_()
            weight = draw.tensor("weight", (vocabulary, 4)).to(dtype).detach().requires_grad_()
            bias = draw.tensor("bias", (vocabulary,)).to(dtype).detach().requires_grad_() if draw.flag("bias") else None
            options["chunk_size"] = draw("chunk_size", (None, 1, 2))
            tensors = [hidden, weight, *([bias] if bias is not None else [])]

            def logits() -> torch.Tensor:
                return functional.linear(hidden.float(), weight.float(), None if bias is None else bias.float())

            one = lambda: function(hidden, weight, wanted, bias, **options)  # noqa: E731
        else:
            given = (draw.tensor("logits", (*rows, vocabulary), dtype) * large).detach().requires_grad_()
            tensors = [given]
            if "chunked" in name:
                draw.assume(len(rows) == 1)
                options["block_rows"] = draw("block_rows", (None, 1, 2))

            def logits() -> torch.Tensor:
                return given.float()

            one = lambda: function(given, wanted, **options)  # noqa: E731

        def reference() -> torch.Tensor:
            found = functional.cross_entropy(
                logits().reshape(-1, vocabulary), wanted.reshape(-1), reduction=reduction, ignore_index=ignored
            )
            return found.view(rows) if reduction == "none" else found

        compare(draw, one, reference, tensors, within=0.02 if dtype == torch.bfloat16 else 1e-4)

    return check


for _name in (
    "sequence.cross_entropy:vocab_parallel_cross_entropy",
    "sequence.linear_cross_entropy:vocab_parallel_linear_cross_entropy",
    "runtime.chunked_cross_entropy:chunked_cross_entropy",
):
    part(f"losses/{_name.partition(':')[2]}", "torch.nn.functional.cross_entropy", examples=400)(_cross_entropy(_name))


@part("losses/vocab_sequence_parallel_cross_entropy", "torch.nn.functional.cross_entropy", examples=300)
def _sequence_loss(lab: Lab, draw: Draw) -> None:
    function = public("sequence.cross_entropy:vocab_sequence_parallel_cross_entropy")
    length, samples, vocabulary = draw.integer("length", 1, 4), draw.integer("samples", 1, 3), 5
    logits = (
        (draw.tensor("logits", (length, samples, vocabulary)) * draw("times", (1.0, 100.0))).detach().requires_grad_()
    )
    wanted = labels(draw, (length, samples), vocabulary)
    group = lab.torch.distributed.group.WORLD

    def reference() -> torch.Tensor:
        found = functional.cross_entropy(logits.reshape(-1, vocabulary), wanted.view(-1), reduction="none")
        return found.view(length, samples)

    with flat_gathers(lab):
        compare(draw, lambda: function(logits, wanted, group), reference, [logits], within=1e-4)


@part("losses/FPDT_FFN", "two linear layers with torch's tanh gelu", examples=100)
def _chunked_mlp(lab: Lab, draw: Draw) -> None:
    function = public("sequence.fpdt_layer:FPDT_FFN")
    chunk, chunks, samples = draw.integer("chunk", 1, 3), draw.integer("chunks", 1, 3), draw.integer("samples", 1, 2)
    x = draw.tensor("x", (chunk * chunks, samples, 4)).clone().requires_grad_()
    model, add = _MLP(4), draw.flag("add_bias")
    w1, b1, w2, b2 = model.up.weight, model.up.bias, model.down.weight, model.down.bias

    def one() -> torch.Tensor:
        value, bias = function.apply(x * 1.0, w1, b1, w2, b2, add, chunk)
        found: torch.Tensor = value if bias is None else value + bias
        return found

    def reference() -> torch.Tensor:
        return functional.linear(functional.gelu(functional.linear(x, w1, b1), approximate="tanh"), w2, b2)

    compare(draw, one, reference, [x, w1, b1, w2, b2], within=1e-4)


@part("losses/FPDT_LogitsLoss", "torch.nn.functional.cross_entropy", examples=100)
def _chunked_logits(lab: Lab, draw: Draw) -> None:
    function = public("sequence.fpdt_layer:FPDT_LogitsLoss")
    chunk, chunks, samples = draw.integer("chunk", 1, 3), draw.integer("chunks", 1, 3), draw.integer("samples", 1, 2)
    vocabulary, length = 120, chunk * chunks
    x = draw.tensor("x", (length, samples, 4)).clone().requires_grad_()
    weight = draw.tensor("weight", (vocabulary, 4)).clone().requires_grad_()
    wanted = labels(draw, (samples, length), vocabulary)
    group = lab.torch.distributed.group.WORLD

    def one() -> torch.Tensor:
        found: torch.Tensor = function.apply(x * 1.0, wanted, weight, 0, 1, group, chunks)
        return found

    def reference() -> torch.Tensor:
        logits = functional.linear(x, weight).reshape(-1, vocabulary)
        return functional.cross_entropy(logits, wanted.t().reshape(-1), reduction="none").view(length, samples)

    compare(draw, one, reference, [x, weight], within=1e-4)
