"""TiledMLP and sequence_tiled_compute: an input that requires no gradient leaves the weights without gradients.

Why: autograd sees only the input of the tiled computation, not the weights, which the function uses. Where everything
    before it is frozen, such as an embedding, the output requires no gradient, so the weights are not trained, and
    nothing says so. If nothing else is trained either, the backward pass raises RuntimeError: element 0 of tensors does
    not require grad and does not have a grad_fn.
How: such an input is detached and requires a gradient, which is discarded, if gradients are enabled and what the
    function computes of the first tile requires one.
Changes: the training of these weights. A checkpoint written without the patch has them as they were initialized or
    loaded; it loads, and they are trained from there. As above trained layers, ZeRO-2 and ZeRO-3 raise AssertionError
    if they are not in `compute_params`, or are used in two tiled computations.
Workaround: Scripts call `requires_grad_()` on the input, or `model.enable_input_require_grads()`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from dsfix.patch import Patch, Replace, Severity, Source
from dsfix.process.effects import ran

from ._tiled import module_of, train, with_apply

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.sequence_parallel.ulysses_sp"


def _with_graph(position: Callable[[Any], int]) -> Callable[[Any], Any]:
    """The function whose output is in the graph of its weights. position: of the input among the arguments."""

    def replaced(original: Any) -> Any:
        import torch

        def detached(value: Any) -> Any:
            return value.detach() if torch.is_tensor(value) else value

        def apply(*args: Any) -> Any:
            function, at = args[0], position(args)
            of_weights: list[bool] = []

            def computed(*tile: Any, **tiles: Any) -> Any:
                if of_weights:
                    return function(*tile, **tiles)
                with torch.enable_grad():  # only the first tile tells
                    output = function(*map(detached, tile), **{key: detached(tiles[key]) for key in tiles})
                of_weights.append(output.requires_grad)
                return output.detach()

            tracked = any(torch.is_tensor(each) and each.requires_grad for each in args)
            if tracked or not torch.is_grad_enabled() or not args[at].is_floating_point():
                return original.apply(*args)
            x = args[at].detach().requires_grad_()
            output = original.apply(computed, *args[1:at], x, *args[at + 1 :])
            if not of_weights[0]:
                return output.detach()
            ran(__name__)  # whether there is a backward pass, is not known yet
            return output

        return with_apply(original, apply)

    return replaced


PATCH = Patch(
    title="TiledMLP, sequence_tiled_compute above frozen layers: the weights are not trained",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0"},
    changes=(
        Replace(f"{_MODULE}:TiledMLP", _with_graph(lambda args: 2)),
        Replace(f"{_MODULE}:SequenceTiledCompute", _with_graph(lambda args: 9 + [*args[3], *args[4]].index(args[5]))),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7268": "introduced in 0.17.0",
    },
    present=(
        Source(f"{_MODULE}:TiledMLP.forward", "ctx.compute_params = [p for p in compute_params if p.requires_grad]"),
    ),
)

_WIDTH, _LENGTH, _TILES = 16, 8, 2
_LEARNING_RATE, _STEPS = 0.1, 2


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    ulysses_sp = module_of(lab)

    def plain(mlp: Any, x: Any) -> Any:
        return mlp(x).tanh()

    def tiled_mlp(mlp: Any, x: Any) -> Any:
        return ulysses_sp.TiledMLP.apply(plain, mlp, x, _TILES, list(mlp.parameters()))

    def tiled_compute(mlp: Any, x: Any) -> Any:
        return ulysses_sp.sequence_tiled_compute(
            plain, _LENGTH, _TILES, {"x": x}, {"mlp": mlp}, "x", list(mlp.parameters()), output_reduction=None
        )

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, how: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.mlp, self.head = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
            self.below.requires_grad_(False)
            self.how = how

        def forward(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.mse_loss(self.head(self.how(self.mlp, self.below(x))), y)

    generator = torch.Generator().manual_seed(0)
    batches = [[torch.randn(1, _LENGTH, _WIDTH, generator=generator) for _ in range(2)] for _ in range(_STEPS)]
    steps = [[batch] for batch in batches]
    model = Model(plain)
    right = reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters
    model = Model(lambda mlp, x: plain(mlp, x).detach())
    wrong = reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters

    reports = []
    for how in (tiled_mlp, tiled_compute):
        for stage in range(4):
            seen = train(lab, Model(how), batches, _LEARNING_RATE, stage)
            after = f"{how.__name__}, stage {stage}: after {_STEPS} steps"
            reports.append(
                reference.compare(seen, right, {"those of a tiled layer that is not trained": wrong}, after=after)
            )
    return "; ".join(reports)
