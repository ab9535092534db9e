"""TiledMLP and sequence_tiled_compute: wrong gradients with more than one sample per batch.

Why: the backward pass of the tiled computations in 0.17.0 to 0.17.2 cuts the sequence into tiles, but takes each tile's
    gradient as a slice of the flat memory. With one sample per batch that is the right place. With more, it is the
    place of another sample's tokens: each token gets the gradient of another. The forward pass, and so the loss, is
    correct. (TiledLoss cuts in the same way, but its forward pass already ends with a RuntimeError.)
How: the gradients are cut along the sequence, as the inputs are.
Changes: only jobs with tiled computation and more than one sample per batch: all gradients of the tiled part and of
    what comes before it. A checkpoint written without the patch holds weights and moments trained on gradients of other
    tokens: it can be loaded, but such a training is better restarted.
Workaround: Scripts train with one sample per micro-batch, or reshape the samples into one sequence for the tiled
    computation, and its result back. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.sequence_parallel.ulysses_sp"
_COMPUTE = f"{_MODULE}:SequenceTiledCompute.backward"
_MLP = f"{_MODULE}:TiledMLP.backward"


def _along_the_sequence(target: str, gradient: str, tile: str, dimension: str = "1") -> Edit:
    """Take the slice of `gradient` for `tile`, which begins at the token `shard_offset`, along the sequence."""
    return Edit(
        target,
        replace=f"{gradient}.view(-1).narrow(0, shard_offset, {tile}.numel()).view_as({tile})",
        code=f"{gradient}.narrow({dimension}, shard_offset, {tile}.shape[1])",
    )


def _in_tokens(target: str, tiles: str) -> Edit:
    """Count the size of all tiles but the last in tokens."""
    return Edit(
        target,
        replace=f"{tiles}[0].numel()",
        code=f"{tiles}[0].shape[1]",
        effect="each token got its own gradient (unpatched: another token's)",
        when=f"len({tiles}) > 1 and {tiles}[0].shape[0] > 1",
    )


PATCH = Patch(
    title="TiledMLP, sequence_tiled_compute: wrong gradients with more than one sample per batch",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0,<0.17.3"},
    changes=(
        _in_tokens(_COMPUTE, "kwargs_to_shard_shards[grad_requiring_tensor_key]"),
        _along_the_sequence(_COMPUTE, "grad_requiring_tensor_grad", "grad_requiring_tensor_shard"),
        _along_the_sequence(_COMPUTE, "incoming_grad", "grad_requiring_tensor_shard", "output_unshard_dimension"),
        _in_tokens(_MLP, "x_shards"),
        _along_the_sequence(_MLP, "x_grad", "x_shard"),
        _along_the_sequence(_MLP, "incoming_grad", "x_shard"),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7268": "introduced in 0.17.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7412": "fixed in 0.17.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7422": "fixed in 0.17.3",
    },
    fixed_in="0.17.3",
    fixed=(
        # as in 0.17.3, and as in pull 7412 alone
        Source(_MLP, "shard_step = x_shards[i].shape[0]"),
        Source(_MLP, "shard_step = x_shards[0].shape[1]"),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 2
_SAMPLES, _LENGTH, _WIDTH, _TILES = 2, 6, 16, 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.sequence_parallel import (
            ulysses_sp,
        )
    except ImportError:
        raise CannotTell(f"{deepspeed.__version__} has no tiled computation") from None

    def cut(gradient: Any) -> Any:
        tile = (_SAMPLES, _LENGTH // _TILES, _WIDTH)
        return torch.cat([part.view(tile) for part in gradient.reshape(-1).chunk(_TILES)], dim=1)

    def paste(gradient: Any) -> Any:
        return torch.cat([part.reshape(-1) for part in gradient.chunk(_TILES, dim=1)]).view(gradient.shape)

    class Through(torch.autograd.Function):  # type: ignore[name-defined,misc,unused-ignore]
        """Identity in forward; `change` applied to the gradient in backward, as the bug does."""

        @staticmethod
        def forward(ctx: Any, x: Any, change: Any) -> Any:
            ctx.change = change
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return ctx.change(gradient), None

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, how: str) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.how = how
            self.first, self.second = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(2))

        def forward(self, x: Any, y: Any) -> Any:
            if self.how == "tiled":
                x = ulysses_sp.TiledMLP.apply(
                    lambda mlp, x: mlp(x).tanh(), self.first, x.requires_grad_(), _TILES, list(self.first.parameters())
                )
                x = ulysses_sp.sequence_tiled_compute(
                    lambda x: self.second(x).tanh(),
                    *(_LENGTH, _TILES, {"x": x}, {}, "x", list(self.second.parameters())),
                    output_reduction=None,
                )
            else:
                before, after = (cut, paste) if self.how == "wrong" else (torch.clone, torch.clone)
                x = Through.apply(self.first(Through.apply(x, after)).tanh(), before)
                x = Through.apply(self.second(Through.apply(x, after)).tanh(), before)
            return torch.nn.functional.mse_loss(x, y)

    generator = torch.Generator().manual_seed(0)
    shape = (_SAMPLES, _LENGTH, _WIDTH)
    steps = [[torch.randn(shape, generator=generator) for _ in range(2)] for _ in range(_STEPS)]
    plain, wrong = (
        lab.reference.train(model, [[step] for step in steps], model, "SGD", lr=_LEARNING_RATE).parameters
        for model in (Model("plain"), Model("wrong"))
    )

    model = Model("tiled")
    config = {
        "train_micro_batch_size_per_gpu": _SAMPLES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in steps:
        engine.backward(engine(inputs.to(lab.device), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        plain,
        {"those of other tokens' gradients": wrong},
        after=f"after {_STEPS} steps of {_SAMPLES} samples",
    )
