"""sequence_tiled_compute with "mean": gradients of other losses are divided by the shards, too.

Why: with `output_reduction="mean"`, the backward pass divides the gradient that it is passed by the shards, in place.
    In `loss = other + tiled` that is the gradient of both, because a sum passes one tensor on to all summands. What was
    computed before the tiles, and is therefore differentiated after them, gets gradients that are too small by the
    number of shards. A gradient that the script passes to `backward` is changed, too.
How: the quotient is a new tensor. It is as small as the loss.
Changes: jobs that add the mean over tiles to other losses: the gradients of those. A checkpoint written without the
    patch loads, and training continues with the sum's own gradient.
Workaround: Scripts multiply the tiled loss by a factor, such as `1.0 *`, before they add it, or compute it before the
    others. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

from ._tiled import module_of, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.sequence_parallel.ulysses_sp:SequenceTiledCompute.backward"

PATCH = Patch(
    title='sequence_tiled_compute with "mean": gradients of other losses are divided by the shards, too',
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.4"},
    changes=(
        Edit(
            _BACKWARD,
            replace="incoming_grad /= shards",
            code="incoming_grad = incoming_grad / shards",
            effect=RAN,  # what else has the gradient is not known
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7437": "introduced in 0.17.4",
    },
    present=(Source(_BACKWARD, "incoming_grad /= shards"),),
)

_WIDTH, _LENGTH, _TILES = 16, 8, 2
_LEARNING_RATE, _STEPS = 0.1, 2


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    ulysses_sp = module_of(lab, "TiledFusedLogitsLoss")  # releases without it do not divide the gradient

    def whole(head: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.mse_loss(head(x), y)

    def tiled(head: Any, x: Any, y: Any) -> Any:
        return ulysses_sp.sequence_tiled_compute(
            whole, _LENGTH, _TILES, {"x": x, "y": y}, {"head": head}, "x", list(head.parameters()), 0, "mean"
        )

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, loss: Any, share: float = 1) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.first, self.second = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
            self.loss, self.share = loss, share

        def forward(self, x: Any, y: Any) -> Any:
            x = self.below(x).tanh()
            return self.share * whole(self.first, x, y) + self.loss(self.second, x, y)

    generator = torch.Generator().manual_seed(0)
    batches = [[torch.randn(1, _LENGTH, _WIDTH, generator=generator) for _ in range(2)] for _ in range(_STEPS)]

    def plain(share: float) -> dict[str, Any]:
        model, steps = Model(whole, share), [[batch] for batch in batches]
        result: dict[str, Any] = reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters
        return result

    return reference.compare(
        train(lab, Model(tiled), batches, _LEARNING_RATE),
        plain(1),
        {"those of another loss whose gradient is divided by the shards": plain(1 / _TILES)},
        after=f"after {_STEPS} steps",
    )
